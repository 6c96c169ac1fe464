"""The errors of the whole program, as a tree.

    HamiError
    ├── SettingsError           an option or a file that people wrote is wrong
    ├── HardwareError           the GPUs or their driver
    │   ├── DriverMissing       no NVIDIA driver on this node (yet): wait and try again
    │   └── NvmlCallFailed      one NVML call failed, for one device or for the node
    ├── ApiError                the Kubernetes API server said no
    │   ├── ApiUnavailable      it did not answer, or asked us to come back: try again
    │   ├── ApiNotFound         404: there is no such object
    │   ├── ApiNotServed        404: there is no such API
    │   ├── ApiConflict         409
    │   ├── ApiForbidden        401, 403: RBAC
    │   │   └── ApiDenied       403, but by admission: a quota, a namespace that is being deleted
    │   ├── ApiExpired          410: list again
    │   └── ApiInvalid          400, 422: it does not accept what we sent
    ├── ServingError            the sockets that the kubelet talks to
    │   ├── SocketPathTooLong   over 107 bytes
    │   └── AlreadyServing      another daemon holds this driver's lock on this node
    ├── StorageError            a file of ours could not be read or written
    │   └── RecordDamaged       a record does not hold what its checksum says
    │       └── RecordTooNew    a record was written by a newer version: no use here either
    ├── ClaimError              this claim can't be prepared; the text ends up in the pod's event
    │   ├── ConfigError         its GpuConfig is wrong
    │   ├── NoRoom              others hold what it was allocated
    │   ├── TimedOut            work on it did not end in time
    │   └── NotBegun            its turn did not come any more
    ├── OwnFault                a fault of ours, in words: the log has the traceback
    ├── AdmissionError          an object isn't admitted; the text is what kubectl shows
    │   ├── TooMany             its namespace has as many templates as it may have
    │   ├── TooSoon             it will be later: others made too much a moment ago
    │   └── ReviewError         what was sent to the webhook is no admission review that it can answer
    └── CertificateError        the webhook's certificate can't be read, made or published

Each message says what is wrong, where (field path, claim namespace/name, device) and what to do. Errors of libraries are
chained as `__cause__`; those of our own bugs (TypeError, KeyError ...) are not part of the tree and are never caught by it.
"""


class HamiError(Exception):
    """Root of every error that we raise on purpose. `str(error)` is written for people."""


class SettingsError(HamiError):
    """An option, environment variable or file given to us is wrong."""


class HardwareError(HamiError):
    """The GPUs, or the driver below them."""


class DriverMissing(HardwareError):
    """The NVML library is not there or says that the driver is not loaded. Not final: drivers are installed later."""


class NvmlCallFailed(HardwareError):
    """An NVML call failed with something else than "not supported".

    Attributes:
        call: The function, e.g. `nvmlDeviceGetUUID`.
        code: NVML's return code.
    """

    def __init__(self, call: str, code: int, reason: str, where: str = "this node") -> None:
        self.call, self.code = call, code
        super().__init__(f"{call} failed for {where}: {reason} (NVML error {code})")


class ApiError(HamiError):
    """The API server refused a request, or could not be asked."""


class ApiUnavailable(ApiError):
    """No connection, a time-out, 429 or 5xx: the same request may work later.

    Attributes:
        retry_after: Seconds that the server asked us to wait, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ApiNotFound(ApiError):
    """404 of an object."""


class ApiNotServed(ApiError):
    """404 of a path: this API, or this version of it. Says nothing about whether the object exists."""


class ApiConflict(ApiError):
    """409: somebody else wrote first, or the object exists already."""


class ApiForbidden(ApiError):
    """401 or 403. The message names the verb and the resource that RBAC has to allow."""


class ApiDenied(ApiForbidden):
    """403 that no right would change: a quota is used up, or the namespace is being deleted."""


class ApiExpired(ApiError):
    """410: the resource version to watch from is too old. List again."""


class ApiInvalid(ApiError):
    """400 or 422, with the server's reasons."""


class ServingError(HamiError):
    """The sockets towards the kubelet."""


class SocketPathTooLong(ServingError):
    """A UNIX socket path holds at most 107 bytes (sockaddr_un.sun_path less its NUL)."""


class AlreadyServing(ServingError):
    """Another process holds the lock of this driver on this node."""


class StillInUse(HamiError):
    """What should be removed is used; says by whom."""


class StorageError(HamiError):
    """A file of ours could not be read, written or removed."""


class RecordDamaged(StorageError):
    """A claim record whose checksum or shape is wrong."""


class RecordTooNew(RecordDamaged):
    """A claim record of a version that this program does not know, as after a roll-back. It is made anew, like a damaged one."""


class ClaimError(HamiError):
    """A claim can't be prepared as the scheduler allocated it; its pod does not start and the event carries this text."""


class ConfigError(ClaimError):
    """An opaque GpuConfig is wrong. The message carries the field path."""


class NoRoom(ClaimError):
    """There is not so much left of a GPU as the claim was allocated, or nobody knows how much there is."""


class TimedOut(ClaimError):
    """Work on a claim did not end within the call's time. It may go on, or hang."""


class NotBegun(ClaimError):
    """Work on a claim was not begun, since something else came first: its unprepare, or the daemon's end."""


class OwnFault(HamiError):
    """What nobody foresaw, as an answer to somebody who has to get one."""


class AdmissionError(HamiError):
    """An object isn't admitted as it is: its author reads this. The message starts with the field path."""


class TooMany(AdmissionError):
    """A namespace has as many templates as it may have, and the object needs one more."""


class TooSoon(AdmissionError):
    """An object is not admitted yet, since much was made for others a moment ago.

    Attributes:
        retry_after: Seconds until it may be.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ReviewError(AdmissionError):
    """A request to the webhook that is no AdmissionReview v1, or one of a kind that it isn't for."""


class CertificateError(HamiError):
    """The webhook's certificate, its key, or the trust in it that the API server needs."""
