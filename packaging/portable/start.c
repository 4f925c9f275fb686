/* SPDX-License-Identifier: Apache-2.0 */
/* Before glibc 2.34 each program carried the function that runs its constructors; newer compilers
 * leave it out. glibc calls `init` if it is not null; otherwise 2.34 and newer run the constructors
 * themselves, and older ones run none. With this they run once with each. The linker's option
 * --wrap=__libc_start_main brings the call here. */
typedef int (*Main)(int, char**, char**);
typedef void (*Constructor)(int, char**, char**);
extern Constructor __init_array_start[];
extern Constructor __init_array_end[];
void _init(void);

static void run_constructors(int argc, char** argv, char** environment) {
  _init();
  for (Constructor* each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
}

int __real___libc_start_main(Main run, int argc, char** argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end);
int __wrap___libc_start_main(Main run, int argc, char** argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end);
int __wrap___libc_start_main(Main run, int argc, char** argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(run, argc, argv, init != 0 ? init : run_constructors, fini,
                                  loader_fini, stack_end);
}
