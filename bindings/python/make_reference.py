#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_reference.py FOLDER: the reference pages of the installed package, by pydoc.

A public name without a docstring is an error."""

import inspect
import os
import pydoc
import sys

import dt
import dt.testing


def missing(module):
    """Public names and methods that nothing is said about."""
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.getdoc(thing):
            yield f"{module.__name__}.{name}"
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and callable(value) and not inspect.getdoc(value):
                    yield f"{module.__name__}.{name}.{member}"


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    modules = [dt, dt.testing]
    try:
        import dt.torch as torch_module
        modules.append(torch_module)
    except ImportError:
        print("without dt.torch: PyTorch is not here")
    bare = [name for module in modules for name in missing(module)]
    if bare:
        sys.exit("make_reference.py: no docstring: " + ", ".join(bare))
    for module in modules:
        path = os.path.join(folder, module.__name__ + ".html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(pydoc.html.page(module.__name__, pydoc.html.document(module)))
        print(path)


if __name__ == "__main__":
    main()
