// SPDX-License-Identifier: Apache-2.0
// What only the host backend can do or get wrong.
#include <doctest/doctest.h>
