// The native path of a launch: what launch.py defines, for launches whose like was made before.
//
// A launch that was decided by the Python definition is remembered as an entry: the class of each value, the constants, what the
// kernel captures, and what crosses the boundary to the driver. A later launch is read into the same words; where they match, and
// nothing that the entry stands on has changed, the driver is called at once. Whatever is not known here goes to the definition,
// which also words every error. No Python object is made on the usual path.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <alloca.h>
#include <stddef.h>
#include <structmember.h>
#include <string.h>
#include <time.h>

#include "flights.h"
#include "native.h"
#include "values.h"

#ifndef GRIDPACT_SOURCE
#define GRIDPACT_SOURCE "unknown"
#endif

enum { MOST_SITES = 16, MOST_ENTRIES = 64 };  // call shapes of a kernel, further ones take the definition; entries of each, older ones are replaced
enum { CURRENT_DEVICE, GIVEN_STREAM, DEBUG, EXTRA };  // words after the slots'

// ------------------------------------------------------------------------------------- what the whole process shares

static PyObject *definition;      // missed(kernel, grid, args, kwargs): launches by the Python definition
static PyObject *stream_var, *device_var;  // ContextVars: the current stream, the current device
static PyObject *stream_type;     // gridpact.Stream
static PyObject *observers;       // the tuple of observers
static PyObject *tap;             // is told each launch before the driver is; NULL
static int is_forked, is_shut, is_off;
static long inside;  // threads in a driver call
static PyObject *str_device, *str_value, *str_knobs, *str_runtime, *str_enter, *str_exit, *str_calls,
    *str_triton, *str_owner, *str_handle, *str_is_closed;

// The environment, whose switches the toolchain reads: a number that changes when it does.
static PyObject *environment;

#if PY_VERSION_HEX >= 0x030C0000
static uint64_t environment_changes;
static int on_environment(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
  (void)event, (void)dict, (void)key, (void)value;
  ++environment_changes;
  return 0;
}
static uint64_t environment_now(void) { return environment_changes; }
// Watches the environment from now on, in place of `before`; either may be NULL. -1 with an exception.
static int watch_environment(PyObject *before) {
  static int watcher = -1;  // one for good: an interpreter has eight
  if (watcher < 0 && (watcher = PyDict_AddWatcher(on_environment)) < 0) return -1;
  ++environment_changes;
  if (before && PyDict_Unwatch(watcher, before)) return -1;
  return environment ? PyDict_Watch(watcher, environment) : 0;
}
#else
static uint64_t environment_now(void) { return environment ? ((PyDictObject *)environment)->ma_version_tag : 0; }
static int watch_environment(PyObject *before) {
  (void)before;
  return 0;
}
#endif

// -------------------------------------------------------------------------------------------------------------- entry

typedef struct {  // a captured value: where it is found, and what it has to be
  PyObject *container, *name, *expected, *held;  // a dict, or a cell with no name; NULL: absent; in a tl.constexpr, or NULL
} Read;

typedef struct {
  PyObject_HEAD
  int count;          // words, with the extra ones
  Word *words;
  PyObject **texts;   // constants that are compared further; NULL elsewhere
  PyObject *classes[2];  // the stream's class and the kernel's `debug`, whose addresses are among the words
  PyObject *info;     // a copy of the dict that it was made of, which nobody else has; it keeps alive all that is borrowed below
  PyObject *compiled;
  PyObject *options;  // dict, resolved
  PyObject *guard, *given, *hold, *let_go, *raise, *check, *fits, *stream_call, *watched;  // callables or None
  PyObject *owners;  // type of what owns our streams of this device, whose kernels are this one; None: any
  PyObject *flights;  // dict of launches that may not be complete: let_go looks at them
  Read *reads;
  int read_count;
  uint64_t environment;
  gridpact_driver driver;
  gridpact_launch launch;  // all but grid, stream and bits
  uint8_t *sizes;
  uint64_t limits[3];
  unsigned __int128 most_programs;
  uint64_t stream;  // the default one
  int stream_reader, stream_device;  // whose exchange API tells the current one, or -1
  int is_held;      // something has to be kept alive until the kernel is complete
  int is_captured;  // a graph has it
} Entry;

static int entry_traverse(PyObject *self, visitproc visit, void *arg) {
  Entry *e = (Entry *)self;
  Py_VISIT(e->info);
  Py_VISIT(e->classes[0]);
  Py_VISIT(e->classes[1]);
  for (int i = 0; e->texts && i < e->count; ++i) Py_VISIT(e->texts[i]);
  return 0;
}

static int entry_clear(PyObject *self) {
  Entry *e = (Entry *)self;
  Py_CLEAR(e->info);
  Py_CLEAR(e->classes[0]);
  Py_CLEAR(e->classes[1]);
  for (int i = 0; e->texts && i < e->count; ++i) Py_CLEAR(e->texts[i]);
  e->read_count = 0;
  return 0;
}

static void entry_dealloc(PyObject *self) {
  Entry *e = (Entry *)self;
  PyObject_GC_UnTrack(self);
  entry_clear(self);
  PyMem_Free(e->words);
  PyMem_Free(e->texts);
  PyMem_Free(e->reads);
  PyMem_Free(e->sizes);
  PyObject_GC_Del(self);
}

static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gridpact.native.path.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A launch as it was decided, for later launches of its like.",
    .tp_traverse = entry_traverse,
    .tp_clear = entry_clear,
    .tp_dealloc = entry_dealloc,
};

// ------------------------------------------------------------------------------------------------ call shapes, kernels

typedef struct {  // a shape of calls: how many values by position, and which by name
  Py_ssize_t positional;
  PyObject *names;  // tuple, or NULL
  int slot_count, parameter_count;
  Slot *slots;  // parameters in the signature's order, then options
  int entry_count, last;  // the entry that matched last
  Entry *entries[MOST_ENTRIES];
} Site;

typedef struct {
  PyObject_HEAD
  PyObject *pre_run_hooks, *origin, *debug;
  int site_count, last;
  Site *sites[MOST_SITES];  // each lives as long as the kernel
} Kernel;

static int kernel_traverse(PyObject *self, visitproc visit, void *arg) {
  Kernel *k = (Kernel *)self;
  Py_VISIT(k->pre_run_hooks);
  Py_VISIT(k->origin);
  Py_VISIT(k->debug);
  for (int s = 0; s < k->site_count; ++s) {
    for (int i = 0; i < k->sites[s]->entry_count; ++i) Py_VISIT(k->sites[s]->entries[i]);
    for (int i = 0; i < k->sites[s]->slot_count; ++i) Py_VISIT(k->sites[s]->slots[i].fixed);
  }
  return 0;
}

static int kernel_clear(PyObject *self) {
  Kernel *k = (Kernel *)self;
  Py_CLEAR(k->pre_run_hooks);
  Py_CLEAR(k->origin);
  Py_CLEAR(k->debug);
  for (int s = 0; s < k->site_count; ++s) {
    Site *site = k->sites[s];
    while (site->entry_count) {
      Entry *entry = site->entries[--site->entry_count];
      Py_DECREF(entry);
    }
    for (int i = 0; i < site->slot_count; ++i) Py_SETREF(site->slots[i].fixed, Py_NewRef(Py_None));
  }
  return 0;
}

static void site_free(Site *site) {
  for (int i = 0; i < site->slot_count; ++i) {
    Py_XDECREF(site->slots[i].fixed);
    Py_XDECREF(site->slots[i].name);
  }
  Py_XDECREF(site->names);
  PyMem_Free(site->slots);
  PyMem_Free(site);
}

static void kernel_dealloc(PyObject *self) {
  Kernel *k = (Kernel *)self;
  PyObject_GC_UnTrack(self);
  kernel_clear(self);
  while (k->site_count) site_free(k->sites[--k->site_count]);
  Py_TYPE(self)->tp_free(self);
}

static int is_shape(const Site *site, Py_ssize_t positional, PyObject *names) {
  if (site->positional != positional) return 0;
  if (site->names == names) return 1;
  const Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
  if (count != (site->names ? PyTuple_GET_SIZE(site->names) : 0)) return 0;
  for (Py_ssize_t i = 0; i < count; ++i) {  // by pointer, then by text: keys of ** are not always interned
    PyObject *mine = PyTuple_GET_ITEM(site->names, i), *other = PyTuple_GET_ITEM(names, i);
    if (mine != other && PyUnicode_Compare(mine, other) != 0) return 0;
  }
  return 1;
}

static Site *site_of(Kernel *k, Py_ssize_t positional, PyObject *names) {
  if (k->site_count && is_shape(k->sites[k->last], positional, names)) return k->sites[k->last];
  for (int i = 0; i < k->site_count; ++i)
    if (is_shape(k->sites[i], positional, names)) return k->sites[k->last = i];
  return NULL;
}

// ------------------------------------------------------------------------------------------------------------- a call

typedef struct {  // what a call was read into
  Word *words;     // of each slot, then the extra ones
  uint64_t *bits;  // of each parameter, then room for hidden ones
  int bit_count;
  PyObject *stream;  // that was given, borrowed from the caller or from `owned`; NULL
  PyObject *stream_device;  // of a gridpact.Stream; owned
  PyObject *device, *owned;  // current ones; owned
} Call;

// Room for both, on the stack of whoever reads a call: as little as it needs, since grids may launch in turn, a thousand deep.
static size_t call_room(const Site *site) {
  const size_t count = (size_t)site->slot_count;
  return (count + EXTRA) * sizeof(Word) + (count + GRIDPACT_MOST_HIDDEN) * sizeof(uint64_t);
}

static void call_begin(Call *call, const Site *site, void *room) {
  memset(call, 0, sizeof *call);
  call->words = room;
  call->bits = (uint64_t *)(call->words + site->slot_count + EXTRA);
}

static void call_end(Call *call) {
  Py_XDECREF(call->stream_device);
  Py_XDECREF(call->device);
  Py_XDECREF(call->owned);
}

static PyObject *value_of(const Slot *slot, PyObject *const *values) {
  return slot->source < 0 ? slot->fixed : values[slot->source];
}

// A tuple of the values of all parameters, with room for some more. NULL with an exception.
static PyObject *passed_of(const Site *site, PyObject *const *values, int more) {
  PyObject *passed = PyTuple_New(site->parameter_count + more);
  for (int i = 0; passed && i < site->parameter_count; ++i)
    PyTuple_SET_ITEM(passed, i, Py_NewRef(value_of(&site->slots[i], values)));
  return passed;
}

// A tuple of so many values. NULL with an exception.
static PyObject *tuple_of(PyObject *const *values, Py_ssize_t count) {
  PyObject *made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made && i < count; ++i) PyTuple_SET_ITEM(made, i, Py_NewRef(values[i]));
  return made;
}

// Reads a call: false where the path does not know a value. No exception is set.
static int call_read(Kernel *k, const Site *site, PyObject *const *values, Call *call) {
  if (!device_var || !stream_var) return 0;
  for (int i = 0; i < site->slot_count; ++i) {
    const Slot *slot = &site->slots[i];
    PyObject *value = value_of(slot, values);
    if (slot->role == STREAM) {
      call->words[i] = (Word){NOTHING, 0};
      if (value != Py_None) call->stream = value;
      continue;
    }
    const int read = gridpact_read(slot, value, &call->words[i], &call->bits[call->bit_count]);
    if (read < 0) return 0;
    call->bit_count += read;
  }
  Word *extra = &call->words[site->slot_count];
  if (PyContextVar_Get(device_var, NULL, &call->device) < 0 || (!call->stream && PyContextVar_Get(stream_var, NULL, &call->owned) < 0)) {
    PyErr_Clear();
    return 0;
  }
  if (!call->stream && call->owned != Py_None) call->stream = call->owned;
  extra[CURRENT_DEVICE] = (Word){NOTHING, 0};
  if (call->device != Py_None) {
    if (!PyUnicode_CheckExact(call->device)) return 0;
    extra[CURRENT_DEVICE] = (Word){TEXT, (uint64_t)PyObject_Hash(call->device)};
  }
  extra[GIVEN_STREAM] = (Word){NOTHING, 0};
  if (call->stream) {
    extra[GIVEN_STREAM] = (Word){OBJECT, (uint64_t)(uintptr_t)Py_TYPE(call->stream)};
    if ((PyObject *)Py_TYPE(call->stream) == stream_type) {  // the device may be chosen by it
      call->stream_device = PyObject_GetAttr(call->stream, str_device);
      if (!call->stream_device || !PyUnicode_CheckExact(call->stream_device)) {
        gridpact_forget_error();
        return 0;
      }
      extra[GIVEN_STREAM] = (Word){TEXT, (uint64_t)PyObject_Hash(call->stream_device)};
    }
  }
  extra[DEBUG] = (Word){OBJECT, (uint64_t)(uintptr_t)k->debug};
  return 1;
}

// Runs no Python code: the entries of a site stay as they are meanwhile.
static int is_match(const Entry *e, const Site *site, PyObject *const *values, const Call *call) {
  if (memcmp(e->words, call->words, (size_t)e->count * sizeof(Word))) return 0;
  for (int i = 0; i < e->count; ++i) {
    if (!e->texts[i]) continue;
    PyObject *value = i < site->slot_count                         ? value_of(&site->slots[i], values)
                      : i == site->slot_count + CURRENT_DEVICE ? call->device
                                                                   : call->stream_device;
    if (e->texts[i] != value && !gridpact_same(e->texts[i], value)) return 0;
  }
  return 1;
}

static Entry *entry_of(Site *site, PyObject *const *values, const Call *call) {
  if (site->entry_count && is_match(site->entries[site->last], site, values, call)) return site->entries[site->last];
  for (int i = 0; i < site->entry_count; ++i)
    if (is_match(site->entries[i], site, values, call)) return site->entries[site->last = i];
  return NULL;
}

// Whether all captured values are the same objects as when the entry was made (STATE-1). May run Python code, as all that
// follows: who calls it holds a reference to the entry.
static int is_current(const Entry *e) {
  for (int i = 0; i < e->read_count; ++i) {
    const Read *read = &e->reads[i];
    PyObject *now = read->name ? PyDict_GetItemWithError(read->container, read->name) : PyCell_GET(read->container);
    if (now != read->expected) {
      gridpact_forget_error();
      return 0;
    }
    if (read->held) {
      PyObject *held = PyObject_GetAttr(read->expected, str_value);
      const int is_same = held == read->held;
      Py_XDECREF(held);
      if (!is_same) {
        gridpact_forget_error();
        return 0;
      }
    }
  }
  return 1;
}

// Takes None, or a tuple of texts, for the names of a call: NULL for none. -1 with an exception.
static int check_names(PyObject **names) {
  if (*names == Py_None) {
    *names = NULL;
    return 0;
  }
  int is_right = PyTuple_Check(*names);
  for (Py_ssize_t i = 0; is_right && i < PyTuple_GET_SIZE(*names); ++i) is_right = PyUnicode_Check(PyTuple_GET_ITEM(*names, i));
  if (!is_right) PyErr_SetString(PyExc_TypeError, "names: a tuple of str, or None");
  return is_right ? 0 : -1;
}

// --------------------------------------------------------------------------------------------------------- the grid

// Counts along x, y and z, from an int, a tuple or a list; false where Python has to judge it.
static int counts_of(PyObject *grid, const uint64_t *limits, uint64_t *out) {
  PyObject *const *axes = &grid;
  Py_ssize_t count = 1;
  const PyTypeObject *kind = Py_TYPE(grid);  // a subclass may give other items than it holds, or be a callable
  if (!kind->tp_call && ((PyTuple_Check(grid) && kind->tp_iter == PyTuple_Type.tp_iter) ||
                         (PyList_Check(grid) && kind->tp_iter == PyList_Type.tp_iter))) {
    axes = PySequence_Fast_ITEMS(grid);
    count = PySequence_Fast_GET_SIZE(grid);
    if (count < 1 || count > 3) return 0;
  }
  out[0] = out[1] = out[2] = 1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!PyLong_CheckExact(axes[i])) return 0;
    int overflow;
    const long long axis = PyLong_AsLongLongAndOverflow(axes[i], &overflow);
    if (overflow || axis < 0 || (uint64_t)axis > limits[i]) return 0;
    out[i] = (uint64_t)axis;
  }
  return 1;
}

// What a callable grid is given: options and arguments by name, in a mapping of its own (GRID-10).
static PyObject *meta_of(const Entry *e, const Site *site, PyObject *const *values) {
  PyObject *meta = PyDict_Copy(e->options);
  for (int i = 0; meta && i < site->parameter_count; ++i)
    if (PyDict_SetItem(meta, site->slots[i].name, value_of(&site->slots[i], values))) Py_CLEAR(meta);
  return meta;
}

static int is_plain_grid(PyObject *grid) { return PyTuple_CheckExact(grid) || PyLong_CheckExact(grid) || PyList_CheckExact(grid); }

// Whether there are more programs than that, without a product that wraps around.
static int is_over(const uint64_t *programs, unsigned __int128 most) {
  const unsigned __int128 plane = (unsigned __int128)programs[0] * programs[1];
  return programs[2] && plane > most / programs[2];
}

// The counts, or -1 with an exception. `*is_judged`: whether one launch may have so many is to be asked of Python.
static int programs_of(const Entry *e, const Site *site, PyObject *grid, PyObject *const *values, uint64_t *out, int *is_judged) {
  PyObject *given = NULL;
  if (!is_plain_grid(grid) && PyCallable_Check(grid)) {
    PyObject *meta = meta_of(e, site, values);
    given = meta ? PyObject_CallOneArg(grid, meta) : NULL;
    Py_XDECREF(meta);
    if (!given) return -1;
    grid = given;
  }
  int code = 0;
  const int is_known = counts_of(grid, e->limits, out);
  *is_judged = !is_known || is_over(out, e->most_programs);
  if (!is_known) {
    PyObject *judged = PyObject_CallOneArg(e->check, grid);  // its error, or (x, y, z)
    const uint64_t any[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
    if (!judged) code = -1;
    if (judged && !counts_of(judged, any, out)) {
      PyErr_SetString(PyExc_SystemError, "the definition gave no grid");
      code = -1;
    }
    Py_XDECREF(judged);
  }
  Py_XDECREF(given);
  return code;
}

// Whether somebody may watch a launch: Python looks who, and tells them (HOOK-3).
static int is_watched(const Kernel *k) {
  if (PyTuple_GET_SIZE(observers)) return 1;
  if (!k->origin || k->origin == Py_None) return 0;
  // A kernel of Triton: those who registered there see it, too. 3.3 keeps them elsewhere: Python looks.
  PyObject *triton = PyImport_GetModule(str_triton);
  PyObject *knobs = triton ? PyObject_GetAttr(triton, str_knobs) : NULL;
  PyObject *runtime = knobs ? PyObject_GetAttr(knobs, str_runtime) : NULL;
  int is = runtime == NULL;
  PyObject *const sides[2] = {str_enter, str_exit};
  for (int i = 0; i < 2 && !is; ++i) {
    PyObject *hook = PyObject_GetAttr(runtime, sides[i]);
    if (hook != Py_None) {
      PyObject *calls = hook ? PyObject_GetAttr(hook, str_calls) : NULL;
      is = !calls || !PyList_Check(calls) || PyList_GET_SIZE(calls);
      Py_XDECREF(calls);
    }
    Py_XDECREF(hook);
  }
  Py_XDECREF(runtime);
  Py_XDECREF(knobs);
  Py_XDECREF(triton);
  gridpact_forget_error();
  return is;
}

static PyObject *handles(const Entry *e, const gridpact_launch *l) {
  PyObject *bits = PyTuple_New(l->count);
  for (uint32_t i = 0; bits && i < l->count; ++i) {
    PyObject *one = PyLong_FromUnsignedLongLong(l->bits[i]);
    if (!one) Py_CLEAR(bits);
    else PyTuple_SET_ITEM(bits, i, one);
  }
  PyObject *info = bits ? PyDict_Copy(e->info) : NULL;
  if (!info) {
    Py_XDECREF(bits);
    return NULL;
  }
  return Py_BuildValue("{s:N,s:(KKK),s:K,s:K,s:N,s:i}", "info", info, "grid", l->programs[0], l->programs[1], l->programs[2],
                       "stream", l->stream, "kernel", l->kernel, "bits", bits, "is_waited_for", !!(l->flags & GRIDPACT_WAIT));
}

// The stream: the default one, or what the tensors' library works on now; false where neither can be told.
static int stream_of(const Entry *e, uint64_t *out) {
  *out = e->stream;
  if (e->stream_reader >= 0) return !gridpact_current_stream(e->stream_reader, 2, e->stream_device, out);
  if (e->stream_call == Py_None) return 1;
  PyObject *told = PyObject_CallNoArgs(e->stream_call);
  const int is_number = told && PyLong_CheckExact(told);
  if (is_number) *out = PyLong_AsUnsignedLongLong(told);
  Py_XDECREF(told);
  const int failed = !is_number || PyErr_Occurred();
  gridpact_forget_error();
  return !failed;
}

// ------------------------------------------------------------------------------------------------------- the launch

// A launch that is decided, while it is made. Observers are told around it, and are handed a callable that makes it.
typedef struct {
  PyObject_HEAD
  Entry *entry;  // borrowed, as all below: null once the launch is over
  const Site *site;
  PyObject *const *values;
  gridpact_launch *launch;
  PyObject *owner;  // what keeps a stream valid that was given, or NULL
  unsigned long thread;  // that launches: another one would go on with what is gone once this one returns
} Pending;

// Keeps alive what a launch that was made uses. -1 with an exception.
static int keep_alive(Entry *e, const Site *site, PyObject *const *values, const gridpact_launch *l, PyObject *owner) {
  PyObject *answer;
  const int is_kept = l->is_captured ? !e->is_captured : !(l->flags & GRIDPACT_WAIT) && (e->is_held || owner);
  if (l->event || is_kept) {  // until the kernel is complete, or for good where a graph has it
    PyObject *keep = passed_of(site, values, 2);
    if (keep) {
      PyTuple_SET_ITEM(keep, site->parameter_count, Py_NewRef(owner ? owner : Py_None));
      PyTuple_SET_ITEM(keep, site->parameter_count + 1, Py_NewRef(e->compiled));
    }
    if (l->event) {
      const int failed = gridpact_fly(&e->driver, l->stream, l->event, keep);
      Py_XDECREF(keep);
      return failed;
    }
    answer = keep ? PyObject_CallFunction(e->hold, "KiO", l->stream, (int)l->is_captured, keep) : NULL;
    // At exit the gate may have shut behind the driver call, and lets nobody hold: the kernel runs, so that it stays for good.
    if (answer || !is_shut) Py_XDECREF(keep);
    e->is_captured |= (int)l->is_captured;
  } else if (PyDict_GET_SIZE(e->flights)) {
    answer = PyObject_CallNoArgs(e->let_go);
  } else {
    return 0;
  }
  Py_XDECREF(answer);
  return answer ? 0 : -1;
}

// Calls the driver, and keeps alive what has to be. -1 with an exception.
static int drive(Entry *e, const Site *site, PyObject *const *values, gridpact_launch *l, PyObject *owner) {
  if (tap) {
    PyObject *asked = Py_NewRef(tap);  // which may take itself away
    PyObject *told = handles(e, l), *answer = told ? PyObject_CallOneArg(asked, told) : NULL;
    Py_DECREF(asked);
    Py_XDECREF(told);
    Py_XDECREF(answer);
    if (!answer) return -1;
  }
  ++inside;  // until it is known what has to be waited for: the process does not end before
  int code, failed = -1;
  Py_BEGIN_ALLOW_THREADS
  code = e->driver.launch(e->driver.context, l);
  Py_END_ALLOW_THREADS
  if (code) {
    PyObject *answer = PyObject_CallFunction(e->raise, "i", code);
    if (answer) PyErr_SetString(PyExc_SystemError, "the driver failed and its error is not known");
    Py_XDECREF(answer);
  } else {
    failed = keep_alive(e, site, values, l, owner);
  }
  if (inside) --inside;  // a child that is forked meanwhile begins at 0
  return failed;
}

static PyObject *pending_call(PyObject *self, PyObject *args, PyObject *kwargs) {
  Pending *p = (Pending *)self;
  (void)args, (void)kwargs;
  Entry *e = p->entry;
  if (!e) {
    PyErr_SetString(PyExc_RuntimeError, "the launch is over");
    return NULL;
  }
  if (p->thread != PyThread_get_thread_ident()) {
    PyErr_SetString(PyExc_RuntimeError, "a launch is made on the thread that it began on");
    return NULL;
  }
  p->entry = NULL;  // once
  if (is_shut) {  // since the call began: ends a thread without a word, as the gate does
    PyErr_SetNone(PyExc_SystemExit);
    return NULL;
  }
  if (is_forked) {
    PyErr_SetString(PyExc_RuntimeError, "this process was forked while the launch was made, and its driver is the parent's");
    return NULL;
  }
  return drive(e, p->site, p->values, p->launch, p->owner) ? NULL : Py_NewRef(Py_None);
}

static void pending_dealloc(PyObject *self) { PyObject_Del(self); }

static PyTypeObject PendingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gridpact.native.path.Pending",
    .tp_basicsize = sizeof(Pending),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Makes the launch that observers are told of.",
    .tp_dealloc = pending_dealloc,
    .tp_call = pending_call,
};

// Makes a launch between the hooks of whoever watches. -1 with an exception.
static int drive_watched(Entry *e, const Site *site, PyObject *const *values, gridpact_launch *l, PyObject *owner) {
  Pending *p = PyObject_New(Pending, &PendingType);
  if (!p) return -1;
  p->entry = e, p->site = site, p->values = values, p->launch = l, p->owner = owner;
  p->thread = PyThread_get_thread_ident();
  PyObject *passed = passed_of(site, values, 0), *answer = NULL;
  if (passed)
    answer = PyObject_CallFunction(e->watched, "(KKK)KOO", l->programs[0], l->programs[1], l->programs[2], l->stream, passed,
                                   (PyObject *)p);
  p->entry = NULL;
  Py_XDECREF(passed);
  Py_XDECREF(answer);
  Py_DECREF(p);
  return answer ? 0 : -1;
}

// Takes a stream that was given: 1 and what keeps it valid, a new reference; 0 where the definition has to; -1 with an exception.
static int stream_given(const Entry *e, PyObject *stream, gridpact_launch *l, PyObject **owner) {
  if ((PyObject *)Py_TYPE(stream) == stream_type) {  // one of ours: the owner first, since another thread may close it
    PyObject *kept = PyObject_GetAttr(stream, str_owner), *handle = kept ? PyObject_GetAttr(stream, str_handle) : NULL;
    PyObject *is_closed = handle ? PyObject_GetAttr(stream, str_is_closed) : NULL;
    const int is_usual = is_closed == Py_False && PyLong_CheckExact(handle) && (e->owners == Py_None || (PyObject *)Py_TYPE(kept) == e->owners);
    if (is_usual) l->stream = PyLong_AsUnsignedLongLong(handle);
    Py_XDECREF(handle);
    Py_XDECREF(is_closed);
    if (is_usual && !PyErr_Occurred()) {
      *owner = kept;
      return 1;
    }
    PyErr_Clear();
    Py_XDECREF(kept);
  }
  PyObject *given = PyObject_CallOneArg(e->given, stream);  // (stream, kernel, what keeps the stream valid), or None
  if (!given || given == Py_None) {
    Py_XDECREF(given);
    return given ? 0 : -1;
  }
  if (!PyArg_ParseTuple(given, "KKO", &l->stream, &l->kernel, owner)) *owner = NULL;
  Py_XINCREF(*owner);
  Py_DECREF(given);
  return *owner ? 1 : -1;
}

// Makes the launch, and gives the compiled kernel; None where the definition has to. The caller owns a reference to the entry.
static PyObject *launched(Kernel *k, Entry *e, const Site *site, PyObject *const *values, Call *call, const uint64_t *programs, int is_judged) {
  gridpact_launch l = e->launch;
  memcpy(l.programs, programs, sizeof l.programs);
  PyObject *owner = NULL;
  if (call->stream) {
    const int taken = stream_given(e, call->stream, &l, &owner);
    if (taken <= 0) return taken ? NULL : Py_NewRef(Py_None);
  } else if (!stream_of(e, &l.stream)) {
    Py_RETURN_NONE;
  }
  int failed = 0;
  if (is_judged) {  // after the stream, as the definition does
    PyObject *answer = PyObject_CallFunction(e->fits, "KKK", programs[0], programs[1], programs[2]);
    Py_XDECREF(answer);
    if (!answer) {
      Py_XDECREF(owner);
      return NULL;
    }
  }
  if (programs[0] && programs[1] && programs[2]) {  // else there is nothing to run (GRID-9)
    const int watched = is_watched(k);
    // Since the call began, or a kernel of another context: the entry has no other than its own to tell observers of.
    if (is_shut | is_forked || (watched && l.kernel != e->launch.kernel)) {
      Py_XDECREF(owner);
      Py_RETURN_NONE;
    }
    l.bits = call->bits;
    for (uint32_t i = 0; i < l.hidden; ++i) l.bits[l.count + i] = 0;
    failed = (watched ? drive_watched : drive)(e, site, values, &l, owner);
  }
  Py_XDECREF(owner);
  return failed ? NULL : Py_NewRef(e->compiled);
}

// The definition, which may remember the launch.
static PyObject *by_definition(Kernel *k, PyObject *grid, PyObject *const *values, Py_ssize_t positional, PyObject *names) {
  PyObject *args = tuple_of(values, positional), *kwargs = PyDict_New(), *result = NULL;
  for (Py_ssize_t i = 0; kwargs && names && i < PyTuple_GET_SIZE(names); ++i)
    if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(names, i), values[positional + i])) Py_CLEAR(kwargs);
  PyObject *asked = Py_XNewRef(definition);
  if (args && kwargs) result = PyObject_CallFunctionObjArgs(asked, (PyObject *)k, grid, args, kwargs, NULL);
  Py_XDECREF(asked);
  Py_XDECREF(args);
  Py_XDECREF(kwargs);
  return result;
}

// Whether the native path may be taken at all: what is no list of hooks may yet give some.
static int is_open(Kernel *k) {
  return definition && !(is_off | is_forked | is_shut) && k->pre_run_hooks && PyList_Check(k->pre_run_hooks) && !PyList_GET_SIZE(k->pre_run_hooks);
}

static int still_stands(const Entry *e) {
  if (e->environment != environment_now()) return 0;
  if (e->guard == Py_None) return 1;
  PyObject *answer = PyObject_CallNoArgs(e->guard);
  const int is = answer == Py_True;
  Py_XDECREF(answer);
  gridpact_forget_error();
  return is;
}

// Launches a call that an entry stands for, or gives None as below. The caller owns a reference to the entry: a callable grid may
// do anything, another thread as well. `fixed` are the counts, where the caller knows them and has looked at the captured values;
// else `*grid` is asked, which may change these.
static PyObject *by_entry(Kernel *k, Entry *e, const Site *site, PyObject **grid, const uint64_t *fixed, PyObject *const *values, Call *call) {
  PyObject *result = NULL;
  uint64_t programs[3];
  int is_judged = 0;
  if (fixed) memcpy(programs, fixed, sizeof programs);
  if (fixed || !programs_of(e, site, *grid, values, programs, &is_judged)) {
    // A callable may have changed the environment, and what is captured.
    const int stands = fixed || ((is_plain_grid(*grid) || still_stands(e)) && is_current(e));
    result = stands ? launched(k, e, site, values, call, programs, is_judged) : Py_NewRef(Py_None);
    if (result == Py_None && !is_plain_grid(*grid)) {
      PyObject *judged = Py_BuildValue("(KKK)", programs[0], programs[1], programs[2]);
      if (!judged) Py_CLEAR(result);
      else *grid = judged;
    }
  }
  return result;
}

// Launches natively: the compiled kernel; NULL with an exception; or None where the definition has to. `*grid` is then a new
// reference to what a callable gave, so that it is asked once.
static PyObject *natively(Kernel *k, PyObject **grid, PyObject *const *values, Py_ssize_t positional, PyObject *names) {
  Call call;
  Site *site = site_of(k, positional, names);
  if (!site) Py_RETURN_NONE;
  call_begin(&call, site, alloca(call_room(site)));
  Entry *e = call_read(k, site, values, &call) ? entry_of(site, values, &call) : NULL;
  Py_XINCREF(e);
  PyObject *result = e && still_stands(e) ? by_entry(k, e, site, grid, NULL, values, &call) : Py_NewRef(Py_None);
  Py_XDECREF(e);
  call_end(&call);
  return result;
}

static PyObject *launch(Kernel *k, PyObject *grid, PyObject *const *values, Py_ssize_t positional, PyObject *names) {
  PyObject *given = grid;
  PyObject *result = is_open(k) ? natively(k, &grid, values, positional, names) : Py_NewRef(Py_None);
  if (result == Py_None) {
    Py_DECREF(result);
    result = by_definition(k, grid, values, positional, names);
  }
  if (grid != given) Py_DECREF(grid);
  return result;
}

// ---------------------------------------------------------------------------------------------------- kernel[grid]

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *kernel, *grid;  // or a prepared launch, and the grid to use instead
} Bound;

static Bound *spare;  // the one that was dropped last: each launch makes one

static PyObject *bound_call(PyObject *self, PyObject *const *values, size_t count, PyObject *names) {
  Bound *b = (Bound *)self;
  return launch((Kernel *)b->kernel, b->grid, values, PyVectorcall_NARGS(count), names);
}

static PyObject *bound_prepared_call(PyObject *self, PyObject *const *values, size_t count, PyObject *names);

static int bound_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((Bound *)self)->kernel);
  Py_VISIT(((Bound *)self)->grid);
  return 0;
}

static int bound_clear(PyObject *self) {
  Py_CLEAR(((Bound *)self)->kernel);
  Py_CLEAR(((Bound *)self)->grid);
  return 0;
}

static void bound_free(PyObject *self) {
  bound_clear(self);
  if (!spare) spare = (Bound *)self;
  else PyObject_GC_Del(self);
}

static void bound_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  PyObject *grid = ((Bound *)self)->grid;
  if (!grid || Py_TYPE(grid)->tp_dealloc != bound_dealloc) {
    bound_free(self);
    return;
  }
  Py_TRASHCAN_BEGIN(self, bound_dealloc)  // a chain of any length
  bound_free(self);
  Py_TRASHCAN_END
}

static PyTypeObject BoundType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gridpact.native.path.Bound",
    .tp_basicsize = sizeof(Bound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A kernel and a grid: kernel[grid].",
    .tp_traverse = bound_traverse,
    .tp_clear = bound_clear,
    .tp_dealloc = bound_dealloc,
    .tp_vectorcall_offset = offsetof(Bound, call),
    .tp_call = PyVectorcall_Call,
};

static PyObject *bound_new(PyObject *self, PyObject *grid, vectorcallfunc call) {
  Bound *b = spare;
  if (b) {
    spare = NULL;
    PyObject_Init((PyObject *)b, &BoundType);
  } else {
    b = PyObject_GC_New(Bound, &BoundType);
    if (!b) return NULL;
  }
  b->call = call;
  b->kernel = Py_NewRef(self);
  b->grid = Py_NewRef(grid);
  PyObject_GC_Track((PyObject *)b);
  return (PyObject *)b;
}

static PyObject *kernel_subscript(PyObject *self, PyObject *grid) { return bound_new(self, grid, bound_call); }

static PyMappingMethods kernel_mapping = {.mp_subscript = kernel_subscript};
static PyMemberDef kernel_members[] = {
    {"pre_run_hooks", T_OBJECT, offsetof(Kernel, pre_run_hooks), 0, "Called before each launch with its arguments."},
    {"origin", T_OBJECT, offsetof(Kernel, origin), 0, "The triton.jit function that it was made of, or None."},
    {"debug", T_OBJECT, offsetof(Kernel, debug), 0, "Whether device assertions are compiled in; None: the toolchain's default."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gridpact.native.path.Launchable",
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The part of a kernel that the native path knows: kernel[grid](...).",
    .tp_new = PyType_GenericNew,
    .tp_traverse = kernel_traverse,
    .tp_clear = kernel_clear,
    .tp_dealloc = kernel_dealloc,
    .tp_as_mapping = &kernel_mapping,
    .tp_members = kernel_members,
};

// ------------------------------------------------------------------------------------------------- prepared launches

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *kernel, *grid, *compiled;
  PyObject *names, *values;  // what was given by name, and stays
  PyObject *missed;          // missed(prepared, grid, args, names): by the definition, or refused
  Entry *entry;              // NULL where nothing could be remembered
  Site *site;                // of the kernel
  Py_ssize_t positional;
  int has_programs, refuses;
  uint64_t programs[3];
} Prepared;

static PyObject *prepared_launch(Prepared *p, PyObject *grid, PyObject *const *values, Py_ssize_t positional, PyObject *names) {
  Kernel *k = (Kernel *)p->kernel;
  const Py_ssize_t named = p->values ? PyTuple_GET_SIZE(p->values) : 0;
  PyObject *given = grid, *result = NULL;
  if (p->entry && !names && positional == p->positional && is_open(k)) {
    if (named) {
      PyObject **all = alloca((size_t)(positional + named) * sizeof *all);
      memcpy(all, values, (size_t)positional * sizeof *all);
      memcpy(all + positional, PySequence_Fast_ITEMS(p->values), (size_t)named * sizeof *all);
      values = all;
    }
    Call call;
    call_begin(&call, p->site, alloca(call_room(p->site)));
    Entry *e = (Entry *)Py_NewRef((PyObject *)p->entry);  // what is asked below may launch p, which may find another one
    const int is_same = call_read(k, p->site, values, &call) && is_match(e, p->site, values, &call);
    int stands = is_same && still_stands(e) && is_current(e);
    if (is_same && !stands) {  // the definition may have found since that nothing else changed
      Entry *newer = entry_of(p->site, values, &call);
      if (newer && newer != e && newer->compiled == p->compiled) {
        Py_SETREF(e, (Entry *)Py_NewRef((PyObject *)newer));
        Py_SETREF(p->entry, (Entry *)Py_NewRef((PyObject *)e));
        stands = still_stands(e) && is_current(e);
      }
    }
    if (stands)
      result = by_entry(k, e, p->site, &grid, p->has_programs && grid == p->grid ? p->programs : NULL, values, &call);
    else if (p->refuses)
      result = Py_NewRef(Py_None);
    else
      result = natively(k, &grid, values, positional, p->names);
    Py_DECREF(e);
    call_end(&call);
    if (result != Py_None) goto done;
    Py_DECREF(result);
    result = NULL;
  }
  PyObject *args = tuple_of(values, positional);
  if (args) result = PyObject_CallFunctionObjArgs(p->missed, (PyObject *)p, grid, args, names ? names : Py_None, NULL);
  Py_XDECREF(args);
done:
  if (grid != given) Py_DECREF(grid);
  return result;
}

static PyObject *prepared_call(PyObject *self, PyObject *const *values, size_t count, PyObject *names) {
  return prepared_launch((Prepared *)self, ((Prepared *)self)->grid, values, PyVectorcall_NARGS(count), names);
}

static PyObject *bound_prepared_call(PyObject *self, PyObject *const *values, size_t count, PyObject *names) {
  Bound *b = (Bound *)self;
  return prepared_launch((Prepared *)b->kernel, b->grid, values, PyVectorcall_NARGS(count), names);
}

static PyObject *prepared_subscript(PyObject *self, PyObject *grid) { return bound_new(self, grid, bound_prepared_call); }

static int prepared_traverse(PyObject *self, visitproc visit, void *arg) {
  Prepared *p = (Prepared *)self;
  Py_VISIT(p->kernel);
  Py_VISIT(p->grid);
  Py_VISIT(p->compiled);
  Py_VISIT(p->names);
  Py_VISIT(p->values);
  Py_VISIT(p->missed);
  Py_VISIT(p->entry);
  return 0;
}

static int prepared_clear(PyObject *self) {
  Prepared *p = (Prepared *)self;
  Py_CLEAR(p->entry);
  Py_CLEAR(p->grid);
  Py_CLEAR(p->compiled);
  Py_CLEAR(p->names);
  Py_CLEAR(p->values);
  Py_CLEAR(p->missed);
  Py_CLEAR(p->kernel);
  return 0;
}

static void prepared_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, prepared_dealloc)
  prepared_clear(self);
  PyObject_GC_Del(self);
  Py_TRASHCAN_END
}

static PyObject *prepared_repr(PyObject *self) {
  return PyUnicode_FromFormat("<prepared launch of %R>", ((Prepared *)self)->kernel);
}

static PyMappingMethods prepared_mapping = {.mp_subscript = prepared_subscript};
static PyMemberDef prepared_members[] = {
    {"kernel", T_OBJECT, offsetof(Prepared, kernel), READONLY, "The kernel."},
    {"grid", T_OBJECT, offsetof(Prepared, grid), READONLY, "The grid that it was prepared with."},
    {"compiled", T_OBJECT, offsetof(Prepared, compiled), READONLY, "The compiled kernel."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PreparedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gridpact.native.path.Prepared",
    .tp_basicsize = sizeof(Prepared),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A launch that kernel.prepare() has decided: p(*args), or p[grid](*args) over another grid.",
    .tp_traverse = prepared_traverse,
    .tp_clear = prepared_clear,
    .tp_dealloc = prepared_dealloc,
    .tp_repr = prepared_repr,
    .tp_vectorcall_offset = offsetof(Prepared, call),
    .tp_call = PyVectorcall_Call,
    .tp_as_mapping = &prepared_mapping,
    .tp_members = prepared_members,
};

// prepared(kernel, grid, programs or None, compiled, names or None, values, given, refuses, missed): `given` are all the values that
// it was prepared with, positional ones first, which an entry may stand for already.
static PyObject *prepared(PyObject *self, PyObject *args) {
  PyObject *kernel, *grid, *programs, *compiled, *names, *named, *given, *missed;
  int refuses;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!OOOOO!O!pO", &KernelType, &kernel, &grid, &programs, &compiled, &names, &PyTuple_Type, &named,
                        &PyTuple_Type, &given, &refuses, &missed))
    return NULL;
  if (check_names(&names)) return NULL;
  if (PyTuple_GET_SIZE(given) > GRIDPACT_MOST_PARAMETERS || PyTuple_GET_SIZE(given) < PyTuple_GET_SIZE(named) ||
      PyTuple_GET_SIZE(named) != (names ? PyTuple_GET_SIZE(names) : 0)) {
    PyErr_SetString(PyExc_ValueError, "a number of values");
    return NULL;
  }
  Prepared *p = PyObject_GC_New(Prepared, &PreparedType);
  if (!p) return NULL;
  memset((char *)p + sizeof(PyObject), 0, sizeof *p - sizeof(PyObject));
  p->call = prepared_call;
  p->kernel = Py_NewRef(kernel);
  p->grid = Py_NewRef(grid);
  p->compiled = Py_NewRef(compiled);
  p->names = Py_XNewRef(names);
  p->values = Py_NewRef(named);
  p->missed = Py_NewRef(missed);
  p->refuses = refuses;
  p->positional = PyTuple_GET_SIZE(given) - PyTuple_GET_SIZE(named);
  Kernel *k = (Kernel *)kernel;
  Call call;
  p->site = site_of(k, p->positional, p->names);
  if (p->site) {
    PyObject *const *items = PySequence_Fast_ITEMS(given);
    call_begin(&call, p->site, alloca(call_room(p->site)));
    Entry *e = call_read(k, p->site, items, &call) ? entry_of(p->site, items, &call) : NULL;
    p->entry = (Entry *)Py_XNewRef((PyObject *)e);
    call_end(&call);
  }
  if (programs != Py_None && PyArg_ParseTuple(programs, "KKK", &p->programs[0], &p->programs[1], &p->programs[2])) p->has_programs = 1;
  PyObject_GC_Track((PyObject *)p);
  if (PyErr_Occurred()) Py_CLEAR(p);
  return (PyObject *)p;
}

// --------------------------------------------------------------------------------------------------- remembering

static int u64(PyObject *info, const char *name, uint64_t *out) {
  PyObject *value = PyDict_GetItemString(info, name);
  *out = value ? PyLong_AsUnsignedLongLong(value) : 0;
  if (!value) PyErr_SetString(PyExc_KeyError, name);
  return PyErr_Occurred() ? -1 : 0;
}

static int u32(PyObject *info, const char *name, uint32_t *out) {
  uint64_t number;
  if (u64(info, name, &number)) return -1;
  if (number > UINT32_MAX) PyErr_SetString(PyExc_OverflowError, name);
  *out = (uint32_t)number;
  return number > UINT32_MAX ? -1 : 0;
}

static PyObject *object(PyObject *info, const char *name) {
  PyObject *value = PyDict_GetItemString(info, name);
  if (!value) PyErr_SetString(PyExc_KeyError, name);
  return value;
}

static Site *site_new(Kernel *k, Py_ssize_t positional, PyObject *names, PyObject *slots) {
  const Py_ssize_t count = PyList_GET_SIZE(slots);
  Site *site = k->site_count == MOST_SITES || count > GRIDPACT_MOST_PARAMETERS ? NULL : PyMem_Calloc(1, sizeof *site);
  if (!site) return NULL;
  site->slots = PyMem_Calloc((size_t)count + 1, sizeof *site->slots);
  site->positional = positional;
  site->names = Py_XNewRef(names);
  const Py_ssize_t given = positional + (names ? PyTuple_GET_SIZE(names) : 0);
  for (Py_ssize_t i = 0; site->slots && i < count; ++i) {
    Slot *slot = &site->slots[i];
    int role, declared, flags;
    PyObject *fixed, *name;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(slots, i), "iiiiOU", &slot->source, &role, &declared, &flags, &fixed, &name)) break;
    const int is_parameter = role == ARGUMENT || role == CONSTANT;
    if (slot->source < -1 || slot->source >= given || role < ARGUMENT || role > STREAM || declared < FREE || declared > POINTER ||
        (is_parameter && site->parameter_count != i)) {  // parameters come first
      PyErr_SetString(PyExc_ValueError, "a slot's source, role, type or place");
      break;
    }
    slot->role = (uint8_t)role, slot->declared = (uint8_t)declared, slot->flags = (uint8_t)flags;
    slot->fixed = Py_NewRef(fixed), slot->name = Py_NewRef(name);
    if (is_parameter) ++site->parameter_count;
    ++site->slot_count;
  }
  if (site->slot_count != count) {
    site_free(site);
    return NULL;
  }
  k->sites[k->site_count] = site;
  k->last = k->site_count++;
  return site;
}

static int reads_of(Entry *e, PyObject *reads) {
  const Py_ssize_t count = PyTuple_GET_SIZE(reads);
  e->reads = PyMem_Calloc((size_t)count + 1, sizeof *e->reads);
  if (!e->reads) {
    PyErr_NoMemory();
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *container, *name, *expected, *held;  // the tuple of tuples keeps them alive
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(reads, i), "OOOO", &container, &name, &expected, &held)) return -1;
    if (name == Py_None ? !PyCell_Check(container) : !PyDict_Check(container) || !PyUnicode_Check(name)) {
      PyErr_SetString(PyExc_TypeError, "a read's container");
      return -1;
    }
    e->reads[i] = (Read){container, name == Py_None ? NULL : name, expected == Py_Ellipsis ? NULL : expected, held == Py_Ellipsis ? NULL : held};
    e->read_count = (int)i + 1;
  }
  return 0;
}

static Entry *entry_new(const Site *site, PyObject *const *values, const Call *call, PyObject *info) {
  Entry *e = PyObject_GC_New(Entry, &EntryType);
  if (!e) return NULL;
  memset((char *)e + sizeof(PyObject), 0, sizeof *e - sizeof(PyObject));
  PyObject *fixed = NULL;
  e->count = site->slot_count + EXTRA;
  e->words = PyMem_Calloc((size_t)e->count, sizeof *e->words);
  e->texts = PyMem_Calloc((size_t)e->count, sizeof *e->texts);
  e->sizes = PyMem_Calloc((size_t)call->bit_count + 1, 1);
  e->info = info = PyDict_Copy(info);
  PyObject *reads, *most;
  uint64_t number;
  int sizes = 0;
  if (!e->words || !e->texts || !e->sizes) PyErr_NoMemory();
  if (!e->words || !e->texts || !e->sizes || !info) goto failed;
  memcpy(e->words, call->words, (size_t)e->count * sizeof(Word));
  for (int i = 0; i < e->count; ++i) {
    const uint64_t tag = e->words[i].tag % 256;
    if (i < site->slot_count) {
      if (tag == TEXT || tag == TUPLE || tag == OBJECT) e->texts[i] = Py_NewRef(value_of(&site->slots[i], values));
      if (site->slots[i].role == ARGUMENT && tag >= INTEGER && tag <= TENSOR) e->sizes[sizes++] = gridpact_size(&e->words[i]);
    } else if (i == site->slot_count + CURRENT_DEVICE) {
      if (tag == TEXT) e->texts[i] = Py_NewRef(call->device);
    } else if (i == site->slot_count + GIVEN_STREAM && tag == TEXT) {
      e->texts[i] = Py_NewRef(call->stream_device);
    }
  }
  if (call->stream) e->classes[0] = Py_NewRef((PyObject *)Py_TYPE(call->stream));
  e->classes[1] = Py_XNewRef((PyObject *)(uintptr_t)e->words[site->slot_count + DEBUG].value);
  const struct { const char *name; PyObject **place; } objects[] = {
      {"compiled", &e->compiled}, {"options", &e->options}, {"guard", &e->guard}, {"given", &e->given}, {"hold", &e->hold},
      {"let_go", &e->let_go}, {"flights", &e->flights}, {"raise", &e->raise}, {"check", &e->check}, {"fits", &e->fits},
      {"watched", &e->watched}, {"owners", &e->owners}, {"stream_call", &e->stream_call}, {"reads", &reads},
      {"most_programs", &most},
  };
  for (size_t i = 0; i < sizeof objects / sizeof *objects; ++i)
    if (!(*objects[i].place = object(info, objects[i].name))) goto failed;
  if (!PyList_Check(reads) || !PyDict_Check(e->flights) || !PyDict_Check(e->options) || e->compiled == Py_None) {
    PyErr_SetString(PyExc_TypeError, "an entry's reads, flights, options or kernel");
    goto failed;
  }
  fixed = PyList_AsTuple(reads);  // a list may change
  if (!fixed || PyDict_SetItemString(info, "reads", fixed) || reads_of(e, fixed)) goto failed;
  PyObject *limits = object(info, "limits"), *cluster = object(info, "cluster");
  if (!limits || !cluster) goto failed;
  if (!PyArg_ParseTuple(limits, "KKK", &e->limits[0], &e->limits[1], &e->limits[2])) goto failed;
  if (!PyArg_ParseTuple(cluster, "III", &e->launch.cluster[0], &e->launch.cluster[1], &e->launch.cluster[2])) goto failed;
  e->most_programs = ~(unsigned __int128)0;
  const unsigned long long most_word = PyLong_AsUnsignedLongLong(most);
  if (!PyErr_Occurred()) e->most_programs = most_word;
  PyErr_Clear();  // more than 64 bits: limited by the axes alone, or by what the caller said of them
  PyObject *address = PyDict_GetItemString(info, "table");
  const gridpact_driver *table = address ? PyLong_AsVoidPtr(address) : NULL;
  if (table && (table->version != GRIDPACT_LAUNCH_ABI || table->bytes < sizeof *table)) {
    PyErr_SetString(PyExc_ValueError, "a driver's table of another version");
    goto failed;
  }
  if (table) e->driver = *table;
  else if (u64(info, "context", &number) || gridpact_cuda_driver(number, &e->driver)) goto failed;
  if (u32(info, "threads", &e->launch.threads) || u32(info, "shared_bytes", &e->launch.shared_bytes)) goto failed;
  if (u32(info, "flags", &e->launch.flags)) goto failed;
  if (u64(info, "kernel", &e->launch.kernel) || u64(info, "stream", &e->stream) || u64(info, "hidden", &number)) goto failed;
  if (number > GRIDPACT_MOST_HIDDEN) goto failed;
  e->launch.hidden = (uint32_t)number;
  e->launch.count = (uint32_t)call->bit_count;
  e->launch.sizes = e->sizes;
  e->stream_reader = e->stream_device = -1;
  PyObject *reader = object(info, "stream_reader");
  if (!reader || !PyArg_ParseTuple(reader, "ii", &e->stream_reader, &e->stream_device)) goto failed;
  if (e->stream_reader >= 0 && !gridpact_tells_streams(e->stream_reader)) {
    PyErr_SetString(PyExc_ValueError, "a reader that tells no stream");
    goto failed;
  }
  if (u64(info, "is_held", &number)) goto failed;
  e->is_held = number != 0;
  e->environment = environment_now();
  Py_DECREF(fixed);
  PyObject_GC_Track((PyObject *)e);
  return e;
failed:
  Py_XDECREF(fixed);
  PyObject_GC_Track((PyObject *)e);
  Py_DECREF(e);
  return NULL;
}

// remember(kernel, positional, names or None, values, slots, bits, info): enters a launch, if the path reads it as the definition
// did: `bits` are the definition's. Gives whether it did.
static PyObject *remember(PyObject *self, PyObject *args) {
  Kernel *k;
  Py_ssize_t positional;
  PyObject *names, *values, *slots, *bits, *info;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!nOO!O!O!O!", &KernelType, &k, &positional, &names, &PyTuple_Type, &values, &PyList_Type, &slots,
                        &PyTuple_Type, &bits, &PyDict_Type, &info))
    return NULL;
  if (check_names(&names)) return NULL;
  const Py_ssize_t given = positional + (names ? PyTuple_GET_SIZE(names) : 0);
  if (positional < 0 || positional > PyTuple_GET_SIZE(values) || PyTuple_GET_SIZE(values) != given) {
    PyErr_SetString(PyExc_ValueError, "as many values as there are names and positions");
    return NULL;
  }
  Site *site = site_of(k, positional, names);
  if (!site) site = site_new(k, positional, names, slots);
  if (!site) return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
  PyObject *const *items = PySequence_Fast_ITEMS(values);
  Call call;
  call_begin(&call, site, alloca(call_room(site)));
  int is_same = call_read(k, site, items, &call) && PyTuple_GET_SIZE(bits) == call.bit_count;
  for (int i = 0; is_same && i < call.bit_count; ++i) {
    is_same = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(bits, i)) == call.bits[i] && !PyErr_Occurred();
    PyErr_Clear();
  }
  Entry *e = is_same ? entry_new(site, items, &call, info) : NULL;
  if (e) {
    int at = -1;
    for (int i = 0; i < site->entry_count && at < 0; ++i)
      if (is_match(site->entries[i], site, items, &call)) at = i;  // what it stood on has changed
    if (at < 0 && site->entry_count < MOST_ENTRIES) {
      at = site->entry_count++;
      site->entries[at] = NULL;
    }
    if (at < 0) at = (site->last + 1) % MOST_ENTRIES;
    Entry *old = site->entries[at];
    site->entries[at] = e;
    site->last = at;
    Py_XDECREF(old);
  }
  call_end(&call);
  if (!e && PyErr_Occurred()) return NULL;
  return PyBool_FromLong(e != NULL);
}

// All values of a call in a tuple of their own, which nobody changes, and the names, NULL for none; both new. NULL with an exception.
static PyObject *values_of(PyObject *args, PyObject *kwargs, PyObject **names) {
  const Py_ssize_t positional = PyTuple_GET_SIZE(args), named = PyDict_GET_SIZE(kwargs);
  PyObject *values = PyTuple_New(positional + named), *name, *value;
  *names = named ? PyTuple_New(named) : NULL;
  if (!values || (named && !*names)) goto failed;
  for (Py_ssize_t i = 0; i < positional; ++i) PyTuple_SET_ITEM(values, i, Py_NewRef(PyTuple_GET_ITEM(args, i)));
  for (Py_ssize_t at = 0, i = 0; named && PyDict_Next(kwargs, &at, &name, &value); ++i) {
    PyTuple_SET_ITEM(*names, i, Py_NewRef(name));
    PyTuple_SET_ITEM(values, positional + i, Py_NewRef(value));
  }
  PyObject *checked = named ? *names : Py_None;
  if (!check_names(&checked)) return values;
failed:
  Py_XDECREF(values);
  Py_CLEAR(*names);
  return NULL;
}

// again(kernel, grid, args, kwargs): launches natively, or gives None.
static PyObject *again(PyObject *self, PyObject *arguments) {
  Kernel *k;
  PyObject *grid, *args, *kwargs;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "O!OO!O!", &KernelType, &k, &grid, &PyTuple_Type, &args, &PyDict_Type, &kwargs)) return NULL;
  if (!is_open(k)) Py_RETURN_NONE;
  PyObject *names, *values = values_of(args, kwargs, &names), *before = grid, *result = NULL;
  if (values) result = natively(k, &grid, PySequence_Fast_ITEMS(values), PyTuple_GET_SIZE(args), names);
  if (grid != before) Py_DECREF(grid);
  Py_XDECREF(values);
  Py_XDECREF(names);
  return result;
}

// bare(kernel, grid, args, kwargs, times): nanoseconds of one driver call, of a launch that an entry stands for.
static PyObject *bare(PyObject *self, PyObject *arguments) {
  Kernel *k;
  PyObject *grid, *args, *kwargs;
  unsigned long long times;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "O!OO!O!K", &KernelType, &k, &grid, &PyTuple_Type, &args, &PyDict_Type, &kwargs, &times)) return NULL;
  PyObject *names, *values = values_of(args, kwargs, &names), *result = NULL;
  if (!values) return NULL;
  PyObject *const *items = PySequence_Fast_ITEMS(values);
  Site *site = is_open(k) ? site_of(k, PyTuple_GET_SIZE(args), names) : NULL;
  Call call = {.bit_count = 0};
  if (site) call_begin(&call, site, alloca(call_room(site)));
  Entry *e = site && call_read(k, site, items, &call) ? entry_of(site, items, &call) : NULL;
  Py_XINCREF(e);
  gridpact_launch l = {.count = 0};
  if (e) l = e->launch;
  if (!e || call.stream || !stream_of(e, &l.stream) || !counts_of(grid, e->limits, l.programs) || !e->driver.repeat) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_LookupError, "no such launch was made before, on the default or the current stream");
  } else {
    l.bits = call.bits;
    memset(call.bits + l.count, 0, l.hidden * sizeof *call.bits);
    struct timespec begin, end;
    int code;
    ++inside;
    Py_BEGIN_ALLOW_THREADS
    clock_gettime(CLOCK_MONOTONIC, &begin);
    code = e->driver.repeat(e->driver.context, &l, times);
    clock_gettime(CLOCK_MONOTONIC, &end);
    Py_END_ALLOW_THREADS
    --inside;
    const double spent = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    result = code ? PyErr_Format(PyExc_RuntimeError, "the driver gave %d", code) : PyFloat_FromDouble(spent / (double)(times ? times : 1));
  }
  Py_XDECREF(e);
  call_end(&call);
  Py_DECREF(values);
  Py_XDECREF(names);
  return result;
}

// --------------------------------------------------------------------------------------------------------- the module

// use(name, object): what the process shares.
static PyObject *use(PyObject *self, PyObject *args) {
  const char *name;
  PyObject *object;
  (void)self;
  if (!PyArg_ParseTuple(args, "sO", &name, &object)) return NULL;
  const struct { const char *name; PyObject **place; PyTypeObject *type; } shared[] = {  // type: NULL for a callable
      {"definition", &definition, NULL}, {"stream_var", &stream_var, &PyContextVar_Type}, {"device_var", &device_var, &PyContextVar_Type},
      {"stream_type", &stream_type, &PyType_Type}, {"observers", &observers, &PyTuple_Type}, {"environment", &environment, &PyDict_Type},
      {"tap", &tap, NULL}, {"numpy_generic", &gridpact_numpy_generic, &PyType_Type},
  };
  for (size_t i = 0; i < sizeof shared / sizeof *shared; ++i) {
    if (strcmp(shared[i].name, name)) continue;
    PyTypeObject *type = shared[i].type;
    const int is_right = object == Py_None ? shared[i].place != &observers : type ? PyObject_TypeCheck(object, type) : PyCallable_Check(object);
    if (!is_right) return PyErr_Format(PyExc_TypeError, "%s: expected %s, got %R", name, type ? type->tp_name : "a callable", object);
    PyObject *before = *shared[i].place;
    *shared[i].place = object == Py_None ? NULL : Py_NewRef(object);
    const int failed = shared[i].place == &environment && watch_environment(before);
    Py_XDECREF(before);
    if (failed) return NULL;
    Py_RETURN_NONE;
  }
  PyErr_SetString(PyExc_ValueError, name);
  return NULL;
}

// turn(what, is): "off", "forked", "shut": nobody enters any more.
static PyObject *turn(PyObject *self, PyObject *args) {
  const char *what;
  int is;
  (void)self;
  if (!PyArg_ParseTuple(args, "sp", &what, &is)) return NULL;
  int *place = !strcmp(what, "off") ? &is_off : !strcmp(what, "forked") ? &is_forked : !strcmp(what, "shut") ? &is_shut : NULL;
  if (!place) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
  }
  *place = is;
  if (place == &is_forked) {
    gridpact_flights_forked(is);
    if (is) inside = 0;  // who was in a driver call is none of the child's threads
  }
  Py_RETURN_NONE;
}

static PyObject *how_many_inside(PyObject *self, PyObject *unused) {
  (void)self, (void)unused;
  return PyLong_FromLong(inside);
}

// layout(): sizes and offsets of launch_abi.h, which drivers are built against.
static PyObject *layout(PyObject *self, PyObject *unused) {
  (void)self, (void)unused;
#define AT(type, field) #field, (Py_ssize_t)offsetof(type, field)
  return Py_BuildValue("{s:I,s:n,s:n,s:{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n},s:{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}}", "version",
                       GRIDPACT_LAUNCH_ABI, "launch", (Py_ssize_t)sizeof(gridpact_launch), "driver",
                       (Py_ssize_t)sizeof(gridpact_driver), "launch_fields", AT(gridpact_launch, programs),
                       AT(gridpact_launch, cluster), AT(gridpact_launch, threads), AT(gridpact_launch, shared_bytes),
                       AT(gridpact_launch, flags), AT(gridpact_launch, stream), AT(gridpact_launch, kernel),
                       AT(gridpact_launch, sizes), AT(gridpact_launch, bits), AT(gridpact_launch, count),
                       AT(gridpact_launch, hidden), AT(gridpact_launch, event), AT(gridpact_launch, is_captured), "driver_fields",
                       AT(gridpact_driver, version), AT(gridpact_driver, bytes), AT(gridpact_driver, context),
                       AT(gridpact_driver, launch), AT(gridpact_driver, repeat), AT(gridpact_driver, wait),
                       AT(gridpact_driver, is_complete), AT(gridpact_driver, release));
#undef AT
}

static PyMethodDef methods[] = {
    {"again", again, METH_VARARGS, "again(kernel, grid, args, kwargs): launch natively; None where the definition has to."},
    {"bare", bare, METH_VARARGS, "bare(kernel, grid, args, kwargs, times): nanoseconds of one driver call."},
    {"in_flight", gridpact_in_flight, METH_VARARGS, "in_flight(table): how many launches of a driver may not be complete."},
    {"inside", how_many_inside, METH_NOARGS, "How many threads are in a driver call."},
    {"land", gridpact_land, METH_VARARGS, "land(table, stream or None, failed): wait for launches in flight."},
    {"layout", layout, METH_NOARGS, "Sizes and offsets of launch_abi.h."},
    {"prepared", prepared, METH_VARARGS, "prepared(kernel, grid, programs, compiled, names, values, given, refuses, missed)"},
    {"register_known", gridpact_register_known, METH_VARARGS, "register_known(reader, 'dtype' or 'device', object, code)"},
    {"register_mark", gridpact_register_mark, METH_VARARGS, "register_mark(reader, inner offset, word offset, bit)"},
    {"register_reader", gridpact_register_reader, METH_VARARGS, "register_reader(type, how, api, lazy methods) -> reader or -1"},
    {"remember", remember, METH_VARARGS, "remember(kernel, positional, names, values, slots, bits, info) -> whether it was entered"},
    {"turn", turn, METH_VARARGS, "turn('off' or 'forked' or 'shut', bool): whether nobody enters any more."},
    {"use", use, METH_VARARGS, "use(name, object): what the process shares."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "gridpact.native.path", .m_doc = "The native path of a launch.", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_path(void) {
  const struct { PyObject **place; const char *name; } names[] = {
      {&str_device, "device"}, {&str_value, "value"}, {&str_knobs, "knobs"}, {&str_runtime, "runtime"},
      {&str_enter, "launch_enter_hook"}, {&str_exit, "launch_exit_hook"}, {&str_calls, "calls"}, {&str_triton, "triton"}, {&str_owner, "owner"}, {&str_handle, "handle"},
      {&str_is_closed, "is_closed"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (!(*names[i].place = PyUnicode_InternFromString(names[i].name))) return NULL;
  if (gridpact_values_begin() || !(observers = PyTuple_New(0))) return NULL;
  if (PyType_Ready(&EntryType) || PyType_Ready(&BoundType) || PyType_Ready(&PendingType) || PyType_Ready(&KernelType) || PyType_Ready(&PreparedType))
    return NULL;
  PyObject *made = PyModule_Create(&module);
  if (made && (PyModule_AddObjectRef(made, "Launchable", (PyObject *)&KernelType) ||
               PyModule_AddObjectRef(made, "Prepared", (PyObject *)&PreparedType) ||
               PyModule_AddStringConstant(made, "SOURCE", GRIDPACT_SOURCE)))
    Py_CLEAR(made);
  return made;
}
