// SPDX-License-Identifier: Apache-2.0
// glibc's variables under the names that our copy of libuv has for them (meson.build).
#include <netinet/in.h>
#include <stdio.h>

#pragma GCC visibility push(hidden)
extern "C" {
char** dt_uv_environ;  // null: dt calls neither uv_spawn() nor uv_os_environ(), which alone use it
extern const in6_addr dt_uv_in6addr_any;
const in6_addr dt_uv_in6addr_any = IN6ADDR_ANY_INIT;
FILE* dt_uv_stderr = stderr;
}
#pragma GCC visibility pop
