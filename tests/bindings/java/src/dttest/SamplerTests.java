// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;

import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.Sampler;
import io.dt.SamplerState;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The sampler against what PyTorch's DistributedSampler gave. */
final class SamplerTests {
  private SamplerTests() {}

  static void add() {
    test("the sampler equals every recorded DistributedSampler", SamplerTests::vectors);
    test("many sample indices at once", SamplerTests::many);
    test("blocks and weights", SamplerTests::orders);
    test("batches of samples", SamplerTests::batches);
    test("an epoch goes on, on other ranks", SamplerTests::resumed);
  }

  private static void orders() throws Exception {
    // What tests/bindings/python/sampler_test.py works out.
    try (Sampler blocks = Sampler.blocks(1, 0, 10, 3, 4, 5, false, false);
        Sampler drawn = Sampler.weighted(1, 0, new double[] {0, 1, 2, 3}, 8, 5, false, false);
        Sampler many = Sampler.blocks(8, 7, 1_000_000_000_000L, 1, 0, 5, true, false)) {
      that(Arrays.equals(blocks.indices(), new long[] {2, 1, 0, 6, 7, 8, 4, 3, 5, 9}), "blocks");
      that(Arrays.equals(drawn.indices(), new long[] {3, 3, 3, 2, 1, 2, 2, 2}), "weights");
      equal(many.length(), 125_000_000_000L);
      equal(many.next(100).length, 100);
    }
    thrown(
        InvalidArgumentException.class, () -> Sampler.blocks(1, 0, 10, 0, 0, 0, false, false),
        "block is 0; it must be at least 1");
    thrown(
        InvalidArgumentException.class, () -> Sampler.blocks(1, 0, 10, 1, -1, 0, false, false),
        "window is -1");
    thrown(
        InvalidArgumentException.class, () -> Sampler.weighted(1, 0, null, 0, 0, false, false),
        "weights has no elements; give one for each sample");
    thrown(
        InvalidArgumentException.class,
        () -> Sampler.weighted(1, 0, new double[] {1, Double.NaN}, 0, 0, false, false),
        "Sampler: weights[1] is nan; weights are finite and >= 0");
  }

  private static void batches() throws Exception {
    try (Sampler sampler = new Sampler(3, 1, 100, 4, true, false, false)) {
      for (int epoch = 0; epoch < 2; epoch++) {
        sampler.setEpoch(epoch);
        long[] all = sampler.indices();
        int done = 0;
        for (long[] batch : sampler.batches(8)) {
          equal(batch.length, Math.min(8, 34 - done));
          that(Arrays.equals(batch, Arrays.copyOfRange(all, done, done + batch.length)), "batch");
          done += batch.length;
        }
        equal(done, 34);
      }
      thrown(
          InvalidStateException.class, () -> sampler.next(1),
          "rank 1 has taken its 34 samples of epoch 1", "Sampler.setEpoch");
      sampler.setEpoch(2);
      thrown(InvalidArgumentException.class, () -> sampler.next(0), "count is 0");
      thrown(InvalidArgumentException.class, () -> sampler.next(1 << 28), "at most 134217728");
      Iterator<long[]> whole = sampler.batches(1 << 27).iterator();
      equal(whole.next().length, 34);
      that(!whole.hasNext(), "the end");
      thrown(NoSuchElementException.class, whole::next);
    }
    try (Sampler sampler = new Sampler(3, 1, 100, 4, true, false, true)) {
      int count = 0;
      for (long[] batch : sampler.batches(8)) count += batch.length == 8 ? 1 : 100;
      equal(count, 4);
    }
  }

  private static void resumed() throws Exception {
    SamplerState state;
    long[] order;
    try (Sampler sampler = new Sampler(1, 0, 100, 4, true, false, false)) {
      sampler.setEpoch(7);
      order = sampler.indices();
      sampler.next(20);
      equal(sampler.save(3).consumed(), 3L);
      state = sampler.save();
      equal(state.epoch(), 7L);
      equal(state.consumed(), 20L);
      thrown(InvalidArgumentException.class, () -> sampler.save(101), "taken is 101");
      thrown(InvalidArgumentException.class, () -> sampler.resume(null), "state is null");
    }
    for (int rank = 0; rank < 3; rank++) {
      try (Sampler sampler = new Sampler(3, rank, 100, 4, true, false, false)) {
        sampler.resume(new SamplerState(7, 20, state.size(), state.order()));
        sampler.setEpoch(7);
        equal(sampler.length(), 27L);
        long[] part = sampler.next(100);
        for (int i = 0; i < 27; i++) equal(part[i], order[(20 + rank + 3 * i) % 100]);
        equal(sampler.save().consumed(), 100L);
      }
    }
    SamplerState saved = state;
    try (Sampler other = new Sampler(1, 0, 100, 5, true, false, false)) {
      thrown(
          InvalidArgumentException.class, () -> other.resume(saved),
          "another seed or another order; create it with the options");
    }
  }

  private static void many() throws Exception {
    int size = 3_000_000;
    try (Sampler sampler = new Sampler(1, 0, size, 0, false, false, false)) {
      long[] indices = sampler.indices();
      equal(indices.length, size);
      for (int i = 0; i < size; i++) that(indices[i] == i, "in order: " + i);
      indices = sampler.indices(5, size - 5);
      equal(indices[size - 6], size - 1L);
      thrown(InvalidArgumentException.class, () -> sampler.indices(6, size - 5), "first");
      thrown(InvalidArgumentException.class, () -> sampler.indices(-1, size));
      try (Sampler all = Sampler.blocks(1, 0, 1L << 31, 1, 0, 0, false, false)) {
        thrown(
            InvalidArgumentException.class, all::indices,
            "Sampler.indices: the epoch has 2147483648 samples", "indices(first, count)");
      }
    }
  }

  private static void vectors() throws Exception {
    String all = Files.readString(Path.of(System.getProperty("dttest.vectors"), "sampler_vectors.json"));
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
            number(entry, "seed"), flag(entry, "shuffle"), flag(entry, "drop_last"), false)) {
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
