// SPDX-License-Identifier: Apache-2.0
package dttest;

/** All tests that need one process. Arguments: words in the names of those to run. */
public final class Main {
  private Main() {}

  /** @param words none: all */
  public static void main(String[] words) {
    SafetyTests.add();
    ArgumentTests.add();
    MatrixTests.add();
    CollectiveTests.add();
    BlockTests.add();
    AsyncTests.add();
    CombineTests.add();
    JobTests.add();
    SamplerTests.add();
    ShardTests.add();
    NamedTests.add();
    PsTests.add();
    ProcessTests.add();
    Check.runAll(words);
  }
}
