// Arguments: what a value's class is, and the bits that a kernel takes. The same answers as arguments.py gives, or "not known",
// and then that one is asked.

#include "values.h"

#include <math.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------------ tensors

// DLPack 1.3, dlpack.h.
typedef struct { int32_t type, id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct Exchange {
  struct { uint32_t major, minor; } version;
  struct Exchange *previous;
  void *allocate, *from_object, *to_object;
  int (*tensor_of)(void *object, DLTensor *out);  // borrowed; no synchronisation
  int (*current_stream)(int32_t type, int32_t id, void **out);
} Exchange;

// PyArrayObject_fields of NumPy's ndarraytypes.h, which its ABI keeps.
typedef struct {
  PyObject_HEAD
  char *data;
  int ndim;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;
} Array;
enum { WRITEABLE = 0x0400 };

typedef struct { PyObject *object; uint32_t code; } Known;

enum How { NUMPY, EXCHANGE, DUCK };

typedef struct {
  PyTypeObject *type;  // exactly; owned, as all that follows
  int how;
  const Exchange *api;
  PyObject *lazy[2];  // methods that say whether it is a lazy view; NULL
  Py_ssize_t inner_at, word_at;  // or the bit that says so: see marks.py
  uint64_t bit;
  Known dtypes[32], devices[32];
  int dtype_count, device_count;
} Reader;

static Reader readers[32];
static int reader_count;
PyObject *gridpact_numpy_generic;

void gridpact_forget_error(void) {
  if (!PyErr_Occurred()) return;
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // it goes to the next Python code
  PyErr_Clear();
}

static PyObject *str_data_ptr, *str_dtype, *str_device, *str_item, *str_dtype_kind, *str_is_conj, *str_is_neg;

static int known(const Known *table, int count, PyObject *object) {
  for (int i = 0; i < count; ++i)
    if (table[i].object == object) return (int)table[i].code;
  return -1;
}

static int known_device(const Reader *reader, PyObject *device) {
  const int code = known(reader->devices, reader->device_count, device);
  if (code >= 0) return code;
  for (int i = 0; i < reader->device_count; ++i) {  // torch makes a new object each time
    if (Py_TYPE(reader->devices[i].object) != Py_TYPE(device)) continue;
    const int is_same = PyObject_RichCompareBool(reader->devices[i].object, device, Py_EQ);
    if (is_same > 0) return (int)reader->devices[i].code;
    if (is_same < 0) gridpact_forget_error();
  }
  return -1;
}

static int is_lazy(const Reader *reader, PyObject *tensor) {
  if (reader->bit) {
    const char *inner = *(const char *const *)((const char *)tensor + reader->inner_at);
    uint64_t word;
    if (!inner) return 1;
    memcpy(&word, inner + reader->word_at, sizeof word);
    return word & reader->bit ? 1 : 0;
  }
  for (int i = 0; i < 2 && reader->lazy[i]; ++i) {
    PyObject *answer = PyObject_CallOneArg(reader->lazy[i], tensor);
    const int is = answer == Py_False ? 0 : answer == Py_True ? 1 : -1;
    Py_XDECREF(answer);
    if (is) {
      gridpact_forget_error();
      return 1;
    }
  }
  return 0;
}

// The same of a tensor that may have the methods itself, and not by its type. The result of one may be anything.
static int is_lazy_duck(PyObject *tensor) {
  PyObject *const names[2] = {str_is_conj, str_is_neg};
  int is = 0;
  for (int i = 0; i < 2 && !is; ++i) {
    PyObject *method = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    is = PyObject_GetOptionalAttr(tensor, names[i], &method);
#else
    is = _PyObject_LookupAttr(tensor, names[i], &method);
#endif
    if (!is) continue;
    PyObject *answer = method ? PyObject_CallNoArgs(method) : NULL;
    is = answer ? PyObject_IsTrue(answer) : 1;
    Py_XDECREF(answer);
    Py_XDECREF(method);
  }
  gridpact_forget_error();
  return is != 0;
}

// Address and facts: dtype from bit 0, read-only at 16, device from bit 17. False where the Python path has to look.
static int read_array(const Reader *reader, PyObject *object, uint64_t *address, uint64_t *facts) {
  const Array *array = (const Array *)object;
  const int dtype = known(reader->dtypes, reader->dtype_count, array->dtype);
  if (dtype < 0) return 0;
  *address = (uint64_t)(uintptr_t)array->data;
  *facts = (uint64_t)dtype | (uint64_t)!(array->flags & WRITEABLE) << 16;
  return 1;
}

static int read_exchange(const Reader *reader, PyObject *object, uint64_t *address, uint64_t *facts) {
  DLTensor tensor;
  if (reader->api->tensor_of(object, &tensor)) {
    gridpact_forget_error();
    return 0;
  }
  if (tensor.dtype.lanes != 1 || tensor.device.type < 0 || tensor.device.type > 255 || tensor.device.id < 0 || tensor.device.id > 0xffff || is_lazy(reader, object)) return 0;
  int is_empty = 0;
  for (int i = 0; i < tensor.ndim; ++i) is_empty |= tensor.shape[i] == 0;
  if (!tensor.data && !is_empty) return 0;
  *address = is_empty ? 0 : (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
  *facts = (uint64_t)tensor.dtype.code << 8 | tensor.dtype.bits | (uint64_t)tensor.device.type << 17 |
           (uint64_t)tensor.device.id << 25;
  return 1;
}

static int read_duck(const Reader *reader, PyObject *object, uint64_t *address, uint64_t *facts) {
  PyObject *dtype = PyObject_GetAttr(object, str_dtype), *device = dtype ? PyObject_GetAttr(object, str_device) : NULL;
  const int kind = dtype ? known(reader->dtypes, reader->dtype_count, dtype) : -1;
  const int where = device ? known_device(reader, device) : -1;
  Py_XDECREF(dtype);
  Py_XDECREF(device);
  PyObject *given = NULL;
  if (kind >= 0 && where >= 0 && !is_lazy_duck(object)) given = PyObject_CallMethodNoArgs(object, str_data_ptr);
  *address = given && PyLong_CheckExact(given) ? PyLong_AsUnsignedLongLong(given) : 0;
  Py_XDECREF(given);
  gridpact_forget_error();
  *facts = (uint64_t)kind | (uint64_t)where << 17;
  return *address != 0;  // of none: the Python path looks for elements
}

// Which reader, by exact type; -1.
static int reader_of(PyObject *value) {
  for (int i = 0; i < reader_count; ++i)
    if (Py_IS_TYPE(value, readers[i].type)) return i;
  return -1;
}

static int read_tensor(const Slot *slot, PyObject *value, Word *word, uint64_t *bits) {
  const int index = reader_of(value);
  if (index < 0) return -1;
  const Reader *reader = &readers[index];
  uint64_t facts;
  const int is_read = reader->how == NUMPY      ? read_array(reader, value, bits, &facts)
                      : reader->how == EXCHANGE ? read_exchange(reader, value, bits, &facts)
                                                : read_duck(reader, value, bits, &facts);
  if (!is_read) return -1;
  const int is_aligned = (slot->flags & (SPECIALIZED | ALIGNED)) == (SPECIALIZED | ALIGNED) && *bits % 16 == 0;
  word->tag = TENSOR | (uint64_t)is_aligned << 8 | (uint64_t)index << 16;
  word->value = facts;
  return 1;
}

int gridpact_tells_streams(int reader) { return reader >= 0 && reader < reader_count && readers[reader].api; }

int gridpact_current_stream(int reader, int device_type, int device, uint64_t *handle) {
  void *stream = NULL;
  if (readers[reader].api->current_stream(device_type, device, &stream)) {
    gridpact_forget_error();
    return -1;
  }
  *handle = (uint64_t)(uintptr_t)stream;
  return 0;
}

// ------------------------------------------------------------------------------------------------------------ numbers

static const struct { long long low, high; } RANGES[] = {
    [I1] = {0, 1},           [I8] = {-128, 127},       [U8] = {0, 255},
    [I16] = {-32768, 32767}, [U16] = {0, 65535},       [I32] = {INT32_MIN, INT32_MAX},
    [U32] = {0, UINT32_MAX}, [I64] = {INT64_MIN, INT64_MAX}, [U64] = {0, INT64_MAX},  // and above: see integer()
};
static const uint8_t SIZES[] = {[I1] = 1, [I8] = 1, [U8] = 1, [I16] = 2, [U16] = 2, [I32] = 4, [U32] = 4,
                                [I64] = 8, [U64] = 8, [FP16] = 2, [BF16] = 2, [FP32] = 4, [FP64] = 8, [POINTER] = 0};

static uint64_t low_bytes(uint64_t bits, int size) { return size == 8 ? bits : bits & ((1ULL << 8 * size) - 1); }

// Rounds once, to nearest even; false where a finite value would become infinite.
static int encode_real(int kind, double value, uint64_t *bits) {
  *bits = 0;
  if (kind == FP64) {
    memcpy(bits, &value, sizeof value);
    return 1;
  }
  if (kind == FP16) {
    unsigned char packed[2];
#if PY_VERSION_HEX >= 0x030B0000
    const int failed = PyFloat_Pack2(value, (char *)packed, 1);
#else
    const int failed = _PyFloat_Pack2(value, packed, 1);
#endif
    if (failed) {
      PyErr_Clear();
      return 0;
    }
    *bits = packed[0] | (uint64_t)packed[1] << 8;
    return 1;
  }
  if (kind == BF16 && isfinite(value)) {
    int exponent;
    frexp(value, &exponent);
    const int place = exponent - 8 > -133 ? exponent - 8 : -133;  // of the last bit
    const double rounded = ldexp(nearbyint(ldexp(value, -place)), place);
    if (fabs(rounded) > 3.3895313892515355e38) return 0;
    value = copysign(rounded, value);
  }
  const float narrow = (float)value;
  if (isinf(narrow) && !isinf(value)) return 0;
  uint32_t word;
  memcpy(&word, &narrow, sizeof word);
  *bits = kind == BF16 ? word >> 16 : word;
  return 1;
}

static int read_integer(const Slot *slot, PyObject *value, Word *word, uint64_t *bits) {
  int overflow, kind = slot->declared;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  uint64_t raw = (uint64_t)number;
  if (overflow) {
    if (overflow < 0 || (kind != FREE && kind != U64)) return -1;
    raw = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      return -1;
    }
    kind = U64;
  } else if (kind == FREE) {
    if (number == 1 && slot->flags & SPECIALIZED) {
      *word = (Word){ONE, 0};
      return 0;
    }
    kind = number >= INT32_MIN && number <= INT32_MAX ? I32 : I64;
  } else if (kind >= FP16 && kind <= FP64) {
    if (number > 1LL << 53 || number < -(1LL << 53) || !encode_real(kind, (double)number, bits)) return -1;
    *word = (Word){REAL, (uint64_t)kind};
    return 1;
  } else if (kind == POINTER || number < RANGES[kind].low || number > RANGES[kind].high) {
    return -1;
  }
  const int is_divisible = (slot->flags & (SPECIALIZED | ALIGNED)) == (SPECIALIZED | ALIGNED) && raw % 16 == 0;
  *bits = low_bytes(raw, SIZES[kind]);
  *word = (Word){INTEGER, (uint64_t)kind | (uint64_t)is_divisible << 8};
  return 1;
}

static int read_real(const Slot *slot, double value, Word *word, uint64_t *bits) {
  const int kind = slot->declared == FREE ? FP32 : slot->declared;
  if (kind < FP16 || kind > FP64 || !encode_real(kind, value, bits)) return -1;
  *word = (Word){REAL, (uint64_t)kind};
  return 1;
}

static int read_boolean(const Slot *slot, int value, Word *word, uint64_t *bits) {
  const int kind = slot->declared == FREE ? I1 : slot->declared;
  if (kind == POINTER) return -1;
  *bits = (uint64_t)value;
  if (kind >= FP16 && !encode_real(kind, value, bits)) return -1;
  *word = (Word){BOOLEAN, (uint64_t)kind};
  return 1;
}

// A number of NumPy as Python's own, a new reference; NULL, without an exception, for what is none.
static PyObject *item_of(PyObject *value) {
  if (!gridpact_numpy_generic || !PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)gridpact_numpy_generic)) return NULL;
  PyObject *dtype = PyObject_GetAttr(value, str_dtype), *kind = dtype ? PyObject_GetAttr(dtype, str_dtype_kind) : NULL;
  const char *text = kind && PyUnicode_Check(kind) ? PyUnicode_AsUTF8(kind) : NULL;
  PyObject *item = text && *text && strchr("biuf", *text) ? PyObject_CallMethodNoArgs(value, str_item) : NULL;
  Py_XDECREF(dtype);
  Py_XDECREF(kind);
  if (item && !PyLong_CheckExact(item) && !PyFloat_CheckExact(item) && !PyBool_Check(item)) Py_CLEAR(item);
  gridpact_forget_error();
  return item;
}

// ---------------------------------------------------------------------------------------------------------- constants

// False for what is compared by identity, and for numbers of NumPy.
static int read_plain_constant(PyObject *value, Word *word) {
  if (value == Py_None) {
    *word = (Word){NOTHING, 0};
  } else if (PyLong_CheckExact(value)) {
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return 0;
    *word = (Word){THE_INT, (uint64_t)number};
  } else if (PyBool_Check(value)) {
    *word = (Word){THE_BOOL, value == Py_True};
  } else if (PyFloat_CheckExact(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    word->tag = THE_FLOAT;
    word->value = 0x7ff8000000000000ULL;  // each NaN is the same
    if (number == number) memcpy(&word->value, &number, sizeof number);
  } else if (PyUnicode_CheckExact(value)) {
    *word = (Word){TEXT, (uint64_t)PyObject_Hash(value)};
  } else if (PyTuple_CheckExact(value)) {
    *word = (Word){TUPLE, (uint64_t)PyTuple_GET_SIZE(value)};
  } else {
    return 0;
  }
  return 1;
}

// `is_number`: a number of NumPy is the same constant as Python's own; of an option it is not.
static int read_constant(PyObject *value, Word *word, int is_number) {
  if (read_plain_constant(value, word)) return 0;
  if (PyLong_CheckExact(value)) return -1;  // more than 64 bits
  PyObject *item = is_number ? item_of(value) : NULL;
  if (!item) {
    *word = (Word){OBJECT, (uint64_t)(uintptr_t)value};
    return 0;
  }
  const int is_read = read_plain_constant(item, word);
  Py_DECREF(item);
  return is_read ? 0 : -1;
}

int gridpact_same(PyObject *one, PyObject *other) {
  if (one == other) return 1;
  if (Py_TYPE(one) != Py_TYPE(other)) return 0;
  if (PyTuple_CheckExact(one)) {
    const Py_ssize_t size = PyTuple_GET_SIZE(one);
    if (size != PyTuple_GET_SIZE(other)) return 0;
    if (Py_EnterRecursiveCall(" while constants are compared")) {
      PyErr_Clear();
      return 0;
    }
    int is_same = 1;
    for (Py_ssize_t i = 0; is_same && i < size; ++i) is_same = gridpact_same(PyTuple_GET_ITEM(one, i), PyTuple_GET_ITEM(other, i));
    Py_LeaveRecursiveCall();
    return is_same;
  }
  if (PyUnicode_CheckExact(one)) return PyUnicode_Compare(one, other) == 0;
  Word mine, others;
  return read_plain_constant(one, &mine) && read_plain_constant(other, &others) && mine.tag == others.tag && mine.value == others.value;
}

int gridpact_read(const Slot *slot, PyObject *value, Word *word, uint64_t *bits) {
  if (slot->role != ARGUMENT) return read_constant(value, word, slot->role == CONSTANT);
  if (PyLong_CheckExact(value)) return read_integer(slot, value, word, bits);
  const int read = read_tensor(slot, value, word, bits);
  if (read > 0) return read;
  if (PyFloat_CheckExact(value)) return read_real(slot, PyFloat_AS_DOUBLE(value), word, bits);
  if (PyBool_Check(value)) return read_boolean(slot, value == Py_True, word, bits);
  if (value == Py_None) {
    *word = (Word){NOTHING, 0};
    return 0;
  }
  PyObject *item = item_of(value);
  if (!item) {  // a dtype, say: a constant, if the Python path took it for one
    if (PyTuple_Check(value) || PyUnicode_Check(value) || reader_of(value) >= 0) return -1;
    *word = (Word){OBJECT, (uint64_t)(uintptr_t)value};
    return 0;
  }
  const int number = gridpact_read(slot, item, word, bits);
  Py_DECREF(item);
  return number;
}

uint8_t gridpact_size(const Word *word) { return word->tag % 256 == TENSOR ? 0 : SIZES[word->value % 256]; }

// ------------------------------------------------------------------------------------------------------- registration

int gridpact_values_begin(void) {
  const struct { PyObject **place; const char *name; } names[] = {
      {&str_data_ptr, "data_ptr"}, {&str_dtype, "dtype"}, {&str_device, "device"}, {&str_dtype_kind, "kind"}, {&str_item, "item"},
      {&str_is_conj, "is_conj"}, {&str_is_neg, "is_neg"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (!(*names[i].place = PyUnicode_InternFromString(names[i].name))) return -1;
  return 0;
}

PyObject *gridpact_register_reader(PyObject *self, PyObject *args) {
  PyTypeObject *type;
  PyObject *api, *lazy;
  int how;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!iOO!", &PyType_Type, &type, &how, &api, &PyTuple_Type, &lazy)) return NULL;
  for (int i = 0; i < reader_count; ++i)
    if (readers[i].type == type) return PyLong_FromLong(i);
  if (reader_count == (int)(sizeof readers / sizeof *readers) || PyTuple_GET_SIZE(lazy) > 2) return PyLong_FromLong(-1);
  Reader made = {.type = type, .how = how};
  if (api != Py_None) {
    made.api = PyCapsule_GetPointer(api, "dlpack_exchange_api");
    if (!made.api) return NULL;
    if (made.api->version.major != 1 || !made.api->tensor_of || !made.api->current_stream) return PyLong_FromLong(-1);
  }
  if ((how == EXCHANGE && !made.api) || how < NUMPY || how > DUCK) return PyLong_FromLong(-1);
  if (how == NUMPY && strcmp(type->tp_name, "numpy.ndarray")) return PyLong_FromLong(-1);  // whose fields are read
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lazy); ++i) made.lazy[i] = Py_NewRef(PyTuple_GET_ITEM(lazy, i));
  Py_INCREF(type);
  Py_INCREF(api);  // the table lives as long as its capsule, for all we know
  readers[reader_count] = made;
  return PyLong_FromLong(reader_count++);
}

PyObject *gridpact_register_mark(PyObject *self, PyObject *args) {
  int index;
  Py_ssize_t inner_at, word_at;
  unsigned long long bit;
  (void)self;
  if (!PyArg_ParseTuple(args, "innK", &index, &inner_at, &word_at, &bit)) return NULL;
  if (index < 0 || index >= reader_count || readers[index].how != EXCHANGE || inner_at < (Py_ssize_t)sizeof(PyObject) || word_at < 0 || inner_at % (Py_ssize_t)sizeof(void *) ||
      inner_at > readers[index].type->tp_basicsize - (Py_ssize_t)sizeof(void *)) {
    PyErr_SetString(PyExc_ValueError, "a reader and two offsets");
    return NULL;
  }
  readers[index].inner_at = inner_at;
  readers[index].word_at = word_at;
  readers[index].bit = bit;
  Py_RETURN_NONE;
}

PyObject *gridpact_register_known(PyObject *self, PyObject *args) {
  const char *what;
  PyObject *object;
  int index;
  unsigned code;
  (void)self;
  if (!PyArg_ParseTuple(args, "isOI", &index, &what, &object, &code)) return NULL;
  const int is_dtype = !strcmp(what, "dtype");
  if (!is_dtype && strcmp(what, "device")) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
  }
  if (index < 0 || index >= reader_count || code > 0xffff) return PyBool_FromLong(0);
  Reader *reader = &readers[index];
  Known *table = is_dtype ? reader->dtypes : reader->devices;
  int *count = is_dtype ? &reader->dtype_count : &reader->device_count;
  if (known(table, *count, object) >= 0) return PyBool_FromLong(1);
  if (*count == (int)(sizeof reader->dtypes / sizeof *reader->dtypes)) return PyBool_FromLong(0);
  table[*count] = (Known){Py_NewRef(object), code};
  ++*count;
  return PyBool_FromLong(1);
}
