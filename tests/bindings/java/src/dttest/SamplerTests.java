// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;

import io.dt.InvalidArgumentException;
import io.dt.Sampler;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The sampler against what PyTorch's DistributedSampler gave. */
final class SamplerTests {
  private SamplerTests() {}

  static void add() {
    test("the sampler equals every recorded DistributedSampler", SamplerTests::vectors);
    test("many sample indices at once", SamplerTests::many);
  }

  private static void many() throws Exception {
    int size = 3_000_000;
    try (Sampler sampler = new Sampler(1, 0, size, 0, false, false)) {
      long[] indices = sampler.indices();
      equal(indices.length, size);
      for (int i = 0; i < size; i++) that(indices[i] == i, "in order: " + i);
      indices = sampler.indices(5, size - 5);
      equal(indices[size - 6], size - 1L);
      thrown(InvalidArgumentException.class, () -> sampler.indices(6, size - 5), "first");
      thrown(InvalidArgumentException.class, () -> sampler.indices(-1, size));
    }
  }

  private static void vectors() throws Exception {
    String all = Files.readString(Path.of(System.getProperty("dttest.vectors")));
    int from = all.indexOf("\"sampler\": [");
    String samplers = all.substring(from, all.indexOf("\"mt19937\"", from));
    Matcher each = Pattern.compile("\\{[^}]*}").matcher(samplers);
    int cases = 0;
    while (each.find()) {
      check(each.group());
      cases++;
    }
    equal(cases, 346);
  }

  private static void check(String entry) throws Exception {
    try (Sampler sampler =
        new Sampler(
            (int) number(entry, "world"), (int) number(entry, "rank"), number(entry, "n"),
            number(entry, "seed"), flag(entry, "shuffle"), flag(entry, "drop_last"))) {
      sampler.setEpoch(number(entry, "epoch"));
      equal(sampler.length(), number(entry, "num_samples"));
      long[] indices = sampler.indices();
      if (entry.contains("\"indices\"")) {
        that(Arrays.equals(indices, list(entry, "indices")), entry);
      } else {
        ByteBuffer bytes =
            ByteBuffer.allocate(8 * indices.length).order(ByteOrder.LITTLE_ENDIAN);
        for (long index : indices) bytes.putLong(index);
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(bytes.array());
        that(entry.contains("\"" + HexFormat.of().formatHex(hash) + "\""), entry);
        that(Arrays.equals(sampler.indices(0, 8), list(entry, "first8")), entry);
        that(
            Arrays.equals(sampler.indices(indices.length - 8, 8), list(entry, "last8")), entry);
      }
    }
  }

  private static String field(String entry, String name, String pattern) {
    Matcher found = Pattern.compile("\"" + name + "\": " + pattern).matcher(entry);
    that(found.find(), "no " + name + " in " + entry);
    return found.group(1);
  }

  /** Seeds go up to 2^64. */
  private static long number(String entry, String name) {
    return new java.math.BigInteger(field(entry, name, "(-?\\d+)")).longValue();
  }

  private static boolean flag(String entry, String name) {
    return field(entry, name, "(true|false)").equals("true");
  }

  private static long[] list(String entry, String name) {
    String inside = field(entry, name, "\\[([^]]*)]");
    if (inside.isEmpty()) return new long[0];
    return Arrays.stream(inside.split(", ")).mapToLong(Long::parseLong).toArray();
  }
}
