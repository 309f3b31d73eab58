// Launches in flight, where the driver gives an event for each.

#ifndef GRIDPACT_FLIGHTS_H
#define GRIDPACT_FLIGHTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "launch_abi.h"

/// Keeps an object until an event is complete, and takes the event over. -1 with an exception: then the launch was waited for.
int gridpact_fly(const gridpact_driver *driver, uint64_t stream, void *event, PyObject *keep);

/// Says that this process was forked: what its parent launched is none of its business.
void gridpact_flights_forked(int is);

/// land(table, stream or None, failed): waits for launches in flight of a driver, on a stream or on all; failed(code) raises.
PyObject *gridpact_land(PyObject *self, PyObject *args);

/// in_flight(table): how many launches of a driver may not be complete.
PyObject *gridpact_in_flight(PyObject *self, PyObject *args);

#endif
