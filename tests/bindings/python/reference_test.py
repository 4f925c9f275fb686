# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring, a signature and annotations; pydoc shows all of them."""

import inspect
import os
import pydoc
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dt


def public_members(cls):
    for name, member in vars(cls).items():
        if not name.startswith("_"):
            yield name, member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


class Reference(unittest.TestCase):
    def check_function(self, name, function):
        self.assertTrue((inspect.getdoc(function) or "").strip(), f"{name} has no docstring")
        signature = inspect.signature(function)
        if not inspect.isfunction(function):
            return  # of C: its signature is all that it can have
        self.assertIsNot(signature.return_annotation, inspect.Signature.empty, f"{name} -> ?")
        for parameter in list(signature.parameters.values()):
            if parameter.name not in ("self", "_", "cls"):
                self.assertIsNot(parameter.annotation, inspect.Parameter.empty, f"{name}({parameter})")

    def check_class(self, name, cls):
        self.assertTrue((cls.__doc__ or "").strip(), f"{name} has no docstring")
        if not issubclass(cls, (Exception, int, tuple)):
            inspect.signature(cls)
        for member_name, member in public_members(cls):
            where = f"{name}.{member_name}"
            if isinstance(member, property):
                self.check_function(where, member.fget)
            elif inspect.isfunction(member) or inspect.ismethoddescriptor(member):
                self.check_function(where, member)
            elif inspect.ismemberdescriptor(member):
                self.assertTrue(member.__doc__, f"{where} has no docstring")

    def test_all_of_dt(self):
        self.assertEqual(sorted(dt.__all__), dt.__all__)
        for name in dt.__all__:
            thing = getattr(dt, name)
            if inspect.isclass(thing):
                self.check_class(name, thing)
            else:
                self.check_function(name, thing)
        beside = {name for name, thing in vars(dt).items()
                  if not name.startswith("_") and not inspect.ismodule(thing)}
        self.assertEqual(beside, set(dt.__all__))

    def test_dt_torch(self):
        try:
            import dt.torch as module
        except ImportError:
            self.skipTest("PyTorch is not here")
        self.check_function("buffer", module.buffer)
        self.check_function("broadcast", module.broadcast)
        self.check_function("check_equal", module.check_equal)
        for cls, names in ((module.DistributedDataParallel, ("forward", "no_sync", "statistics")),
                           (module.ShardedDataParallel, ("gathered", "pieces", "step", "updated"))):
            self.assertTrue(cls.__doc__)
            for name in names:
                self.check_function(name, vars(cls)[name])

    def test_pydoc(self):
        text = pydoc.plain(pydoc.render_doc(dt))
        for name in dt.__all__:
            self.assertIn(name, text)

    def test_every_function_of_the_header_is_reached(self):
        """raw.h reaches dt.h; what is public reaches raw.h."""
        import dt._raw as raw
        folder = os.path.dirname(dt.__file__)
        source = ""
        for name in os.listdir(folder):
            if name.endswith(".py") and name != "raw.py":
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    source += file.read()
        unused = [name for name in dir(raw) if inspect.isbuiltin(getattr(raw, name)) and not name.startswith(
            ("SWIG_", "Bytes_", "new_", "delete_", "LogSink_", "disown_", "Poller_", "_")) and name not in source]
        self.assertEqual([name for name in unused if not name.endswith("_swigregister")
                          and not name.endswith("_swiginit")], ["status_name"])

    def test_the_marker_of_typed_packages_is_there(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(dt.__file__), "py.typed")))


if __name__ == "__main__":
    unittest.main()
