# SPDX-License-Identifier: Apache-2.0
"""Settings of a job, and its log."""

import json
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from . import _raw, raw
from ._types import Handle, LogLevel, Owner

LogFunction = Callable[[LogLevel, str], None]


class _Sink(raw.LogSink):
    """Relays messages of dt's threads to a function."""

    def __init__(self, function: LogFunction) -> None:
        super().__init__()
        self._function = function

    def log(self, level: int, message: str) -> None:
        """Called by dt, on any thread."""
        try:
            self._function(LogLevel(level), message)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            if sys.stderr is not None:
                text = " ".join(str(error).split())
                sys.stderr.write(f"dt: a log function raised {type(error).__name__}: {text}\n")


# dt may call a sink as long as a job lives; jobs do not say when they are gone.
_sinks: List[_Sink] = []


class Config(Owner):
    """Settings of a job before it starts: environment, dt.toml files and defaults, read once.

    path: a file to read instead of ./dt.toml
    settings: keys to set at once; they win over every other source
    """

    def __init__(self, path: Union[str, "os.PathLike[str]", None] = None,
                 settings: Optional[Mapping[str, object]] = None) -> None:
        number = _raw.config_create(None if path is None else os.fspath(path))
        super().__init__(Handle(number, _raw.config_destroy))
        for key, value in (settings or {}).items():
            self.set(key, value)

    def set(self, key: str, value: object) -> None:
        """Sets a key of docs/config.md. A bool becomes "true" or "false", other values their text."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        _raw.config_set(self._handle, key, text)

    def get(self, key: str) -> str:
        """A key's merged value, as text."""
        return str(_raw.config_get(self._handle, key))

    def dump(self) -> Dict[str, Dict[str, Any]]:
        """Every key with its "value" and the "source" it came from."""
        return dict(json.loads(_raw.config_dump(self._handle)))

    def set_log_sink(self, function: Optional[LogFunction]) -> None:
        """Sends the messages of jobs made from this config to `function`; None: to stderr again.

        It is called with a LogLevel and a line of text, on any thread, also dt's own, and must not
        call dt. What it raises is told on stderr.
        """
        sink = None
        if function is not None:
            if not callable(function):
                raise TypeError(f"a log sink is called; {type(function).__name__} cannot be")
            sink = _Sink(function)
            _sinks.append(sink)
        _raw.config_set_log_sink(self._handle, sink)

    def close(self) -> None:
        """Drops the settings; jobs made from them are unaffected."""
        super().close()
