"""Classifies names in a pickle: harmless, able to run code, or unknown.

The rule (docs/SCAN.md has the table): naming something from a module that starts processes, opens files or connections, or
imports or evaluates code is hostile even if it is never called. Calling a function of the standard library, torch or numpy that
is not on a short list of rebuilders is hostile too: these modules are known, and no honest checkpoint does it. Calling an
unknown function of another package is suspicious. An object of an unknown class is harmless: it becomes a placeholder.
"""

from __future__ import annotations

import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

__all__ = [
    "NONSENSE",
    "Objection",
    "canonical",
    "object_to_call",
    "object_to_name",
    "object_to_new",
]

NONSENSE = "not a name that Python itself would write"
Objection = tuple[str, str]
"""(code of the finding, the reason as text)"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RUNS_CODE = _words(
    """
    os posix nt ntpath subprocess sys importlib imp runpy code codeop pty popen2 commands socket
    socketserver ssl select selectors shutil ctypes _ctypes cffi pickle _pickle cPickle marshal
    shelve dill cloudpickle joblib operator _operator webbrowser urllib urllib2 urllib3 http
    httplib requests aiohttp httpx asyncio multiprocessing threading _thread concurrent signal
    faulthandler pdb bdb timeit cProfile profile pstats trace tracemalloc doctest unittest pytest
    pip setuptools distutils ensurepip venv pydoc zipimport pkgutil ftplib smtplib poplib imaplib
    nntplib telnetlib xmlrpc tempfile fileinput glob sqlite3 dbm gc inspect atexit site sysconfig
    idlelib lib2to3 tkinter turtle antigravity _frozen_importlib _frozen_importlib_external
    _winapi winreg msvcrt resource fcntl mmap _posixsubprocess
    _xxsubinterpreters _interpreters linecache logging zipfile tarfile zipapp io _io codecs
    mailcap cgi cgitb wsgiref paramiko fabric sh pexpect invoke psutil IPython jupyter nbformat
    """
)
_SAFE_FROM_RISKY = _words(
    """
    codecs.encode logging.Logger logging.getLogger threading.Lock threading.RLock io.BytesIO
    io.StringIO _io.BytesIO _io.StringIO multiprocessing.context.BaseContext
    """
)
_RISKY_PREFIXES = tuple(
    _words(
        """
    torch.hub torch.utils.cpp_extension torch.package torch.fx.graph_module torch.fx._symbolic
    torch._dynamo torch._inductor torch.utils.bottleneck torch.testing torch.distributed.rpc
    torch.multiprocessing torch.utils._config_module torch.utils.collect_env
    torch.utils.model_dump torch.utils.data.datapipes torch.jit._script
    torch.jit.unsupported_tensor_ops torch.serialization.load torch._ops torch.ops torch.classes
    torch.backends torch.cuda._ torch.onnx torch.compiler numpy.f2py numpy.testing
    numpy.distutils numpy.lib.npyio numpy.load numpy.save pandas.io pandas.core.computation
    pandas.eval sympy.parsing types.FunctionType types.CodeType types.MethodType
    types.DynamicClassAttribute types.coroutine types.prepare_class types.new_class
    types.resolve_bases
    """
    )
)
_RISKY_NAMES = _words(
    """
    system popen Popen exec eval execfile compile __import__ import_module check_output
    check_call getoutput getstatusoutput runstring run_code runcode fork spawnv spawnl spawnlp
    spawnvp execv execve execvp execl execlp _make_function _make_skel_func _create_function
    _create_code FunctionType CodeType os sys subprocess builtins importlib shutil socket ctypes
    pickle marshal runpy posix pty attrgetter methodcaller
    """
)
_BUILTIN_TYPES = _words(
    """
    object list dict set frozenset tuple int float complex bool str bytes bytearray slice range
    long unicode Ellipsis NotImplemented None property basestring xrange
    """
)
_BUILTIN_FUNCTIONS = _words(
    """
    print len sum min max abs sorted round any all zip enumerate isinstance hash repr ord chr
    divmod pow reversed type getattr map filter
    """
)
_STDLIB_CALLS = _words(
    """
    collections.OrderedDict collections.defaultdict collections.deque collections.Counter
    collections.ChainMap collections.UserDict datetime.datetime datetime.date datetime.time
    datetime.timedelta datetime.timezone uuid.UUID decimal.Decimal fractions.Fraction
    argparse.Namespace types.SimpleNamespace types.MappingProxyType time.struct_time
    copyreg._reconstructor copyreg.__newobj__ copyreg.__newobj_ex__ _codecs.encode re._compile
    re.compile functools.partial itertools.count random.Random array._array_reconstructor
    ipaddress.IPv4Address zoneinfo.ZoneInfo._unpickle weakref.ref string.Template enum.Enum
    """
)
_TORCH_CALLS = _words(
    """
    torch.device torch.dtype torch.Size torch.serialization._get_layout numpy.dtype numpy.ndarray
    torch.storage._load_from_bytes torch.Generator torch.cuda.ByteTensor
    torch._tensor._rebuild_from_type_v2 torch._tensor._rebuild_from_type torch.finfo
    """
)


def canonical(module: str, name: str) -> tuple[str, str]:
    """The Python 3 name for a name in a file (`__builtin__`, `copy_reg`)."""
    if (module, name) in NAME_MAPPING:
        return NAME_MAPPING[module, name]
    return IMPORT_MAPPING.get(module, module), name


def object_to_name(module: str, name: str) -> Objection | None:
    """The reason why naming this is a finding, or None."""
    path = f"{module}.{name}"
    top = module.partition(".")[0]
    parts = name.split(".")
    if path in _SAFE_FROM_RISKY:
        return None
    if top in _RUNS_CODE:
        return "hostile_pickle", f"{path}: the module `{top}` can run code or reach outside"
    if any(p.startswith("__") and p.endswith("__") for p in parts) and top != "copyreg":
        return "hostile_pickle", f"{path}: reaches into Python's own internals"
    if top == "builtins":
        return _object_to_builtin(name)
    if any(p in _RISKY_NAMES for p in parts):
        return "hostile_pickle", f"{path}: this name runs code or leads to what does"
    if len(parts) > 1 and any(not is_class_like(p) for p in parts[:-1]):
        return "hostile_pickle", f"{path}: reaches through a module for something inside it"
    if not module or any(not p.isidentifier() for p in (*module.split("."), *parts)):
        return "hostile_pickle", f"{path!r}: {NONSENSE}"
    return None


def _object_to_builtin(name: str) -> Objection | None:
    if name in _BUILTIN_TYPES or name in _BUILTIN_FUNCTIONS:
        return None
    if name.endswith(("Error", "Exception", "Warning", "Iteration", "Exit", "Interrupt")):
        return None
    return "hostile_pickle", f"builtins.{name}: can run code or reach outside"


def object_to_new(module: str, name: str) -> Objection | None:
    """The reason why making an object of this class, without `__init__`, is a finding."""
    objection = object_to_name(module, name)
    if objection is not None:
        return objection
    path = f"{module}.{name}"
    if path.startswith(_RISKY_PREFIXES):
        return "hostile_pickle", f"{path}: can run code when it is rebuilt"
    if (
        module == "builtins"
        and name in _BUILTIN_FUNCTIONS
        and name not in ("type", "zip", "enumerate")
    ):
        return "hostile_pickle", f"{path}: not a class of data"
    return None


def object_to_call(module: str, name: str) -> Objection | None:
    """The reason why calling this at load time is a finding, or None for a normal rebuilder."""
    path = f"{module}.{name}"
    top = module.partition(".")[0]
    if path in _STDLIB_CALLS or path in _TORCH_CALLS:
        return None
    objection = object_to_new(module, name)
    if objection is not None:
        return objection
    if path in _SAFE_FROM_RISKY:
        return None
    is_known_module = top in ("torch", "numpy") or top in sys.stdlib_module_names
    if is_class_like(name.rpartition(".")[2]):
        if top in sys.stdlib_module_names and top not in (
            "builtins",
            "pathlib",
            "enum",
            "__future__",
        ):
            return "unknown_call", f"{path}: makes an object of the standard library"
        return None
    if top == "builtins":
        return (
            None if name in _BUILTIN_TYPES else ("hostile_pickle", f"{path}: a call of a function")
        )
    if is_known_module:
        return "hostile_pickle", f"{path}: no honest checkpoint calls this function"
    return "unknown_call", f"{path}: a function that is not known"


def is_class_like(name: str) -> bool:
    """Whether `name` is spelled like a class.

    >>> is_class_like("_Config"), is_class_like("load")
    (True, False)
    """
    return name.lstrip("_")[:1].isupper()
