// Launches in flight, where the driver gives an event for each: what a kernel uses is kept until it is complete. Those of one stream
// end in the order of their launches. All is done with Python's lock held, but for the wait itself.

#include "flights.h"

typedef struct Flight {
  void *event;
  PyObject *keep;
  struct Flight *next;
  int holders;  // the lane, and each thread that waits
} Flight;

typedef struct {
  gridpact_driver driver;
  uint64_t stream;
  Flight *first, *last;
} Lane;

static Lane *lanes;
static size_t lane_count;
static int is_forked;

void gridpact_flights_forked(int is) { is_forked = is; }

static void flight_drop(const gridpact_driver *driver, Flight *flight) {
  if (--flight->holders) return;
  driver->release(flight->event);
  PyObject *keep = flight->keep;
  PyMem_Free(flight);
  Py_DECREF(keep);  // last: destructors are the users' code, and may launch
}

// Lets go of what is complete on one stream.
static void lane_let_go(size_t at) {
  while (lanes[at].first && lanes[at].driver.is_complete(lanes[at].first->event)) {
    Lane *lane = &lanes[at];
    Flight *flight = lane->first;
    const gridpact_driver driver = lane->driver;
    lane->first = flight->next;
    if (!lane->first) lane->last = NULL;
    flight_drop(&driver, flight);
  }
}

int gridpact_fly(const gridpact_driver *driver, uint64_t stream, void *event, PyObject *keep) {
  size_t at = 0, empty = lane_count;
  while (at < lane_count && !(lanes[at].stream == stream && lanes[at].driver.launch == driver->launch)) {
    if (!lanes[at].first) empty = at;
    ++at;
  }
  const int is_new = at == lane_count;
  Flight *flight = keep ? PyMem_Malloc(sizeof *flight) : NULL;
  if (is_new && flight) {
    if (empty < lane_count) {
      at = empty;
    } else {
      Lane *more = PyMem_Realloc(lanes, (lane_count + 1) * sizeof *lanes);
      if (more) lanes = more, ++lane_count;
      else PyMem_Free(flight), flight = NULL;
    }
    if (flight) lanes[at] = (Lane){*driver, stream, NULL, NULL};
  }
  if (!flight) {
    driver->wait(event);
    driver->release(event);
    if (!PyErr_Occurred()) PyErr_NoMemory();
    return -1;
  }
  *flight = (Flight){event, Py_NewRef(keep), NULL, 1};
  if (lanes[at].last) lanes[at].last->next = flight;
  else lanes[at].first = flight;
  lanes[at].last = flight;
  if (is_new) {  // of streams that came before, too
    for (size_t i = 0; i < lane_count; ++i) lane_let_go(i);
  } else {
    lane_let_go(at);
  }
  return 0;
}

PyObject *gridpact_land(PyObject *self, PyObject *args) {
  unsigned long long table, stream = 0;
  PyObject *which, *failed, *type = NULL, *error = NULL, *trace = NULL;
  (void)self;
  if (!PyArg_ParseTuple(args, "KOO", &table, &which, &failed)) return NULL;
  if (which != Py_None && ((stream = PyLong_AsUnsignedLongLong(which)), PyErr_Occurred())) return NULL;
  const gridpact_driver *driver = (const gridpact_driver *)(uintptr_t)table;
  for (size_t at = 0; driver && !is_forked && at < lane_count; ++at) {
    while (lanes[at].driver.launch == driver->launch && (which == Py_None || lanes[at].stream == stream)) {
      Flight *flight = lanes[at].first;
      if (!flight) break;
      ++flight->holders;
      int code;
      Py_BEGIN_ALLOW_THREADS
      code = driver->wait(flight->event);
      Py_END_ALLOW_THREADS
      if (code) {
        PyObject *answer = PyObject_CallFunction(failed, "i", code);
        Py_XDECREF(answer);
        if (!type) PyErr_Fetch(&type, &error, &trace);  // the first is told, when all are waited for
        else PyErr_Clear();
      }
      if (lanes[at].first == flight) {  // nobody else took it
        lanes[at].first = flight->next;
        if (!flight->next) lanes[at].last = NULL;
        flight_drop(driver, flight);
      }
      flight_drop(driver, flight);
    }
  }
  if (type) {
    PyErr_Restore(type, error, trace);
    return NULL;
  }
  Py_RETURN_NONE;
}

PyObject *gridpact_in_flight(PyObject *self, PyObject *args) {
  unsigned long long table;
  long count = 0;
  (void)self;
  if (!PyArg_ParseTuple(args, "K", &table)) return NULL;
  const gridpact_driver *driver = (const gridpact_driver *)(uintptr_t)table;
  for (size_t at = 0; driver && at < lane_count; ++at)
    for (const Flight *flight = lanes[at].first; flight && lanes[at].driver.launch == driver->launch; flight = flight->next) ++count;
  return PyLong_FromLong(count);
}
