#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_exceptions.py FILE...: writes the subclasses of DtException, each to the file of its name."""

import sys
from pathlib import Path

COMMENTS = {
    "AbortedException": "A rank aborted the job or left the communicator; the message has its reason.",
    "ConfigException": "A setting is wrong, or the ranks' settings do not fit together.",
    "CudaException": "CUDA refused something.",
    "DtTimeoutException": "The time was over; the message names the ranks that did not come.",
    "InternalException": "A fault of dt itself; please report it.",
    "InvalidArgumentException": "An argument is wrong, or its handle is closed; nothing was done.",
    "InvalidStateException": "The call does not fit here: after the job's end, inside a group, inside a step.",
    "MismatchException": "Ranks called different things; the message shows both sides.",
    "NcclException": "NCCL refused something.",
    "OutOfMemoryException": "The library or a device has no memory left.",
    "PeerLostException": "Another rank died or cannot be reached: rank, host and process say which.",
    "SystemException": "The operating system refused something.",
    "UnsupportedException": "This build, backend or store cannot do it.",
    "VersionException": "The other side speaks another version of dt.",
}

CLASS = """\
// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** {comment} */
public final class {name} extends DtException {{
  private static final long serialVersionUID = 1L;

  {name}(Data data) {{
    super(data);
  }}
}}
"""

if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(CLASS.format(name=file.stem, comment=COMMENTS[file.stem]), encoding="utf-8")
