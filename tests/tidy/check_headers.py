#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each function of dt.h says what its parameters are, what it returns, which threads and since when."""

import re
import sys

import dt_header


def complaints_about(function):
    comment = function.comment
    if not comment:
        return ["has no /** comment right before it"]
    found = [f"@{word} is missing" for word in ("thread", "since") if not re.search(rf"@{word}\s+\w", comment)]
    documented = re.findall(r"@param(?:\[\w+\])?\s+(\w+)", comment)
    found += [f"@param {name} is missing" for name in function.parameters if name not in documented]
    found += [f"@param {name} is no parameter" for name in documented if name not in function.parameters]
    if [name for name in documented if name in function.parameters] != function.parameters and not found:
        found.append("@param lines are not in the order of the parameters")
    has_return = re.search(r"@return\s+\S", comment)
    if function.returns == "void" and has_return:
        found.append("@return of a void function")
    if function.returns != "void" and not has_return:
        found.append("@return is missing")
    return found


def main():
    functions = dt_header.functions()
    complaints = [f"include/dt/dt.h:{function.line}: {function.name}: {text}"
                  for function in functions for text in complaints_about(function)]
    for line in complaints:
        print(line)
    if not functions:
        print("no DT_API function found in dt.h")
    return 1 if complaints or not functions else 0


if __name__ == "__main__":
    sys.exit(main())
