// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <signal.h>

int main(int argument_count, char** arguments) {
  // Under nohup, or in the background of a script, these are ignored, and programs that tests start
  // would inherit that.
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) ::signal(signal, SIG_DFL);
  return doctest::Context(argument_count, arguments).run();
}
