// Arguments as the native path reads them.

#ifndef GRIDPACT_VALUES_H
#define GRIDPACT_VALUES_H

#include <Python.h>
#include <stdint.h>

/// What of a value chooses among binaries. Two equal words of one slot mean the same class, or the same constant.
typedef struct {
  uint64_t tag, value;
} Word;

enum Tag {
  NOTHING = 1,  // None, and what is not given
  ONE, INTEGER, BOOLEAN, REAL, TENSOR,  // a run-time value's class
  THE_INT, THE_BOOL, THE_FLOAT,         // a constant, whole
  TEXT, TUPLE,                          // a constant that is compared further
  OBJECT                                // a constant by identity
};

enum Role { ARGUMENT, CONSTANT, OPTION, STREAM };

enum Declared { FREE, I1, I8, U8, I16, U16, I32, U32, I64, U64, FP16, BF16, FP32, FP64, POINTER };

enum { SPECIALIZED = 1, ALIGNED = 2 };  // flags of a slot: 1, and multiples of 16, may choose among binaries

/// Where a parameter or an option is found, and what may become of it.
typedef struct {
  int source;        // index into the call's values, positional ones first; -1: the default
  uint8_t role, declared, flags;
  PyObject *fixed;  // the default, owned; NULL
  PyObject *name;   // of the parameter, owned
} Slot;

/// Reads a value: 1 if it is passed at run time (`bits` is filled in), 0 if it is a constant, -1 if the path does not know it.
/// No exception is set.
int gridpact_read(const Slot *slot, PyObject *value, Word *word, uint64_t *bits);

/// Whether two constants of one word are the same, by type and value. Runs no Python code.
int gridpact_same(PyObject *one, PyObject *other);

/// Forgets an error where the definition is to be asked; an interrupt comes again there.
void gridpact_forget_error(void);

/// Makes the texts that the readers look attributes up by; -1 with an exception.
int gridpact_values_begin(void);

/// Whether that reader's library tells its current stream.
int gridpact_tells_streams(int reader);

/// Bytes of a run-time value with that word, 0 for a pointer.
uint8_t gridpact_size(const Word *word);

/// The stream that torch, or whoever's exchange API was registered, works on now; -1 where it does not tell.
int gridpact_current_stream(int reader, int device_type, int device, uint64_t *handle);

/// register_reader(type, how, api or None, lazy methods) -> index
PyObject *gridpact_register_reader(PyObject *self, PyObject *args);
/// register_mark(index, offset of the inner object's pointer, offset of a word there, bit)
PyObject *gridpact_register_mark(PyObject *self, PyObject *args);
/// register_known(index, "dtype" or "device", object, code)
PyObject *gridpact_register_known(PyObject *self, PyObject *args);

extern PyObject *gridpact_numpy_generic;  // the base of NumPy's scalars; NULL while NumPy is not in use

#endif
