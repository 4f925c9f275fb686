// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.bytes;
import static dttest.Ranks.floats;

import io.dt.BatchNorm;
import io.dt.Blocks;
import io.dt.ClosedException;
import io.dt.Comm;
import io.dt.Config;
import io.dt.DataType;
import io.dt.DtException;
import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.Job;
import io.dt.Param;
import io.dt.ReduceOp;
import io.dt.Reducer;
import io.dt.Sampler;
import io.dt.Tensor;
import io.dt.Work;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Wrong arguments are exceptions that name them, in the words of Java. */
final class ArgumentTests {
  private ArgumentTests() {}

  static void add() {
    test("wrong buffers", () -> SafetyTests.alone((job, comm) -> buffers(comm)));
    test("null arguments are named", () -> SafetyTests.alone(ArgumentTests::nulls));
    test("wrong arguments are said in the words of Java", () ->
        SafetyTests.alone(ArgumentTests::words));
    if (System.getProperty("dttest.module") == null) { // which lets nobody look inside
      test("messages name methods that there are", ArgumentTests::names);
    }
    test("wrong sizes of 2 ranks", () -> Ranks.run(2, (job, comm) -> sizes(comm)));
  }

  /** Functions of libdt that no message names. */
  private static final Set<String> ABSENT =
      Set.of(
          "dt_status_name", "dt_last_error", "dt_last_error_info", "dt_abi_version", "dt_version",
          "dt_build_info", "dt_collective_launch");

  private static void names() throws Exception {
    Method said = Class.forName("io.dt.Wording").getDeclaredMethod("inJava", String.class);
    said.setAccessible(true);
    Path map = Path.of(System.getProperty("dttest.vectors"), "../../runtime/capi/libdt.map");
    List<String> wrong = new ArrayList<>();
    Matcher functions = Pattern.compile("\\bdt_\\w+(?=;)").matcher(Files.readString(map));
    while (functions.find()) {
      String name = (String) said.invoke(null, functions.group());
      if (found(name) == ABSENT.contains(functions.group())) {
        wrong.add(functions.group() + " is " + name);
      }
    }
    equal(wrong, List.of());
  }

  /** "new Class", "Class.method" or "Class". */
  private static boolean found(String name) {
    String[] parts = name.replaceFirst("^new ", "").split("\\.");
    try {
      Class<?> type = Class.forName("io.dt." + parts[0]);
      if (name.startsWith("new ")) return type.getConstructors().length > 0;
      return parts.length == 1
          || Arrays.stream(type.getMethods()).anyMatch(each -> each.getName().equals(parts[1]));
    } catch (ClassNotFoundException e) {
      return false;
    }
  }

  private static Tensor some(int count) {
    return Tensor.of(floats(count));
  }

  private static void buffers(Comm comm) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    Tensor four = some(4);
    Tensor fixed = Tensor.of(floats(4).asReadOnlyBuffer());
    FloatBuffer heap = FloatBuffer.allocate(4);
    thrown(refused, () -> Tensor.of(heap), "Tensor.of: buffer", "heap", "direct");
    Tensor array = Tensor.of(new float[4]);
    thrown(refused, () -> comm.allReduceAsync(array), "array", "direct");
    thrown(refused, () -> comm.broadcastAsync(array, 0), "array");
    thrown(refused, array::address, "heap");
    thrown(refused, () -> comm.allReduce(four, fixed, ReduceOp.SUM), "recv is read-only");
    thrown(refused, () -> comm.allReduce(fixed), "tensor is read-only");
    comm.broadcast(fixed, 0); // only read here
    thrown(refused, () -> comm.allReduce(four, some(3), ReduceOp.SUM), "recv", "3", "4");
    thrown(refused, () -> comm.allReduceAsync(four, some(5), ReduceOp.SUM), "5");
    thrown(refused, () -> Tensor.of(floats(4), DataType.F64), "FloatBuffer", "F64");
    thrown(refused,
        () -> comm.allReduce(four, Tensor.of(bytes(16).asIntBuffer()), ReduceOp.SUM),
        "recv is of I32, but send of F32");
    ByteBuffer big = ByteBuffer.allocateDirect(16);
    thrown(refused, () -> Tensor.of(big, DataType.F32), "BIG_ENDIAN");
    thrown(refused, () -> Tensor.of(big.asFloatBuffer()), "order");
    comm.allReduce(Tensor.of(big, DataType.U8)); // a byte has no order
    thrown(refused, () -> Tensor.of(bytes(7), DataType.F32), "7");
    thrown(refused, () -> Tensor.of(bytes(8).asCharBuffer(), DataType.F16), "CharBuffer");
    thrown(refused, () -> Tensor.of(new byte[3], DataType.F32), "3");
    thrown(refused, () -> Tensor.at(0, 4, DataType.F32, null), "address is 0");
    thrown(refused, () -> Tensor.at(8, -4, DataType.F32, null), "count is -4");
    thrown(refused, () -> four.slice(2, 3), "3 elements from 2 on", "4");
    thrown(refused, () -> four.slice(-1, 1), "-1");
    thrown(refused, () -> comm.broadcast(four, 1), "broadcast: root is 1", "0 to 0");
    thrown(refused, () -> comm.allocate(0, DataType.F32), "count is 0");
    thrown(refused, four::buffer, "Comm.allocate");
    four.close(); // not dt's
    comm.allReduce(four);
    try (Tensor large = comm.allocate(3L << 30, DataType.U8)) {
      thrown(refused, large::buffer, "slices");
      equal(large.slice((3L << 30) - 4, 4).buffer().getInt(0), 0);
    }
    comm.groupBegin();
    thrown(refused, () -> comm.allReduce(array), "array", "group");
    thrown(InvalidStateException.class, comm::groupBegin, "group");
    comm.groupEnd();
    thrown(InvalidStateException.class, comm::groupEnd, "group");
    comm.allReduce(four);
    try (Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, DataType.F32)))) {
      thrown(refused, () -> reducer.ready(0, some(3)), "gradient", "3");
      Tensor closed = comm.allocate(1, DataType.F32);
      closed.close();
      Tensor wide = Tensor.of(bytes(8), DataType.F64);
      thrown(refused, () -> reducer.clipNorm(1, wide, 0), "1 elements of F64", "F32");
      thrown(refused, () -> reducer.clipNorm(1, some(0), 0), "norm has 0 elements");
      thrown(refused, () -> reducer.clipNorm(1, fixed, 0), "norm is read-only");
      thrown(ClosedException.class, () -> reducer.clipNorm(1, closed, 0), "Tensor");
      thrown(refused, () -> reducer.ready(0, array), "heap");
      thrown(refused, () -> reducer.ready(0, Tensor.of(bytes(32).asDoubleBuffer())), "F64");
      thrown(refused, () -> reducer.ready(0, fixed), "read-only");
      thrown(refused, () -> reducer.ready(1, four), "Reducer.ready: index is 1");
      thrown(refused, () -> reducer.gradient(-1), "index");
      reducer.ready(0, four);
      thrown(InvalidStateException.class, () -> reducer.ready(0, four), "ready");
      reducer.finish();
    }
  }

  /** Each is refused with the argument's name. */
  private static void nulls(Job job, Comm comm) throws Exception {
    Tensor four = some(4);
    Param param = new Param("w", 4, DataType.F32);
    Map<String, Check.Body> calls = new LinkedHashMap<>();
    calls.put("allReduce: tensor", () -> comm.allReduce(null));
    calls.put("allReduce: op", () -> comm.allReduce(four, null));
    calls.put("allReduce: send", () -> comm.allReduce(null, four, ReduceOp.SUM));
    calls.put("allReduce: recv", () -> comm.allReduceAsync(four, null, ReduceOp.SUM));
    calls.put("broadcast: tensor", () -> comm.broadcast(null, 0));
    calls.put("Tensor.of: buffer", () -> Tensor.of((FloatBuffer) null));
    calls.put("Tensor.of: array", () -> Tensor.of((float[]) null));
    calls.put("Tensor.of: type", () -> Tensor.of(bytes(4), null));
    calls.put("Tensor.at: type", () -> Tensor.at(8, 1, null, null));
    calls.put("Blocks.of: offsets", () -> Blocks.of(new long[1], null));
    calls.put("Comm.allocate: type", () -> comm.allocate(4, null));
    calls.put("createComm: ranks", () -> job.createComm(null, null));
    calls.put("Comm.checkEqual: data", () -> comm.checkEqual(null, "a"));
    calls.put("Comm.setTimeout: the duration", () -> comm.setTimeout(null));
    calls.put("Comm.withTimeout: the duration", () -> comm.withTimeout(null));
    calls.put("BatchNorm.moments: input", () -> BatchNorm.moments(comm, null, 1, 1));
    calls.put("BatchNorm.gradientSums: moments",
        () -> BatchNorm.gradientSums(comm, four, four, null, 1, 0));
    calls.put("Reducer: comm", () -> new Reducer(null, List.of(param)));
    calls.put("Reducer: params", () -> new Reducer(comm, null));
    calls.put("Reducer: type", () -> new Reducer(comm, List.of(new Param("w", 4, null))));
    calls.put("Sampler: comm", () -> new Sampler(null, 4, 0));
    calls.put("Store.set: key", () -> job.store().set(null, new byte[0]));
    calls.put("Store.set: value", () -> job.store().set("a", null));
    calls.put("Store.multiGet: keys", () -> job.store().multiGet(null));
    calls.put("Job.leave: the duration", () -> job.leave(null));
    calls.put("Work.awaitAny: works", () -> Work.awaitAny(null, Duration.ZERO));
    calls.put("Config: file", () -> new Config(null));
    for (Map.Entry<String, Check.Body> each : calls.entrySet()) {
      thrown(InvalidArgumentException.class, each.getValue(), each.getKey() + " is null");
    }
    try (Reducer reducer = new Reducer(comm, List.of(param))) {
      thrown(InvalidArgumentException.class, () -> reducer.ready(0, null), "gradient is null");
    }
    comm.barrier();
  }

  /** What dt itself refuses is said in the words of Java. */
  private static void words(Job job, Comm comm) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    List<DtException> all = new ArrayList<>();
    all.add(thrown(refused, () -> new Sampler(2, 2, 10, 0, true, false, false), "rank"));
    all.add(thrown(refused, () -> new Sampler(0, 0, 10, 0, true, false, false), "worldSize"));
    all.add(thrown(refused, () -> new Sampler(1, 0, -5, 0, true, false, false), "size is -5"));
    all.add(thrown(refused, () -> new Reducer(comm, List.of()), "Reducer"));
    all.add(thrown(refused, () -> comm.worldRank(1), "Comm.worldRank", "rank"));
    all.add(thrown(refused, () -> job.store().set("", new byte[0]), "Store.set", "key"));
    all.add(thrown(refused, () -> Work.awaitAny(List.of(), Duration.ZERO), "Work.awaitAny"));
    Sampler other = new Sampler(comm, 10, 0);
    all.add(thrown(refused, () -> new Sampler(comm, 11, 0).resume(other.save()), "size is 10"));
    ByteBuffer nine = bytes(9);
    all.add(
        thrown(
            refused,
            () -> comm.allReduce(
                Tensor.of(nine.slice(0, 8), DataType.U8), Tensor.of(nine.slice(1, 8), DataType.U8),
                ReduceOp.SUM),
            "Comm.allReduce: send and recv overlap"));
    comm.groupBegin();
    all.add(thrown(InvalidStateException.class, comm::groupBegin, "group"));
    comm.groupEnd();
    for (DtException each : all) {
      String said = each.getMessage();
      that(!said.matches(".*(dt_|DT_|NULL|->|dt\\.h|[a-z]_[a-z]).*"), said);
    }
  }

  private static void sizes(Comm comm) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    thrown(refused, () -> comm.allGather(some(4), some(4)), "recv", "8 are wanted");
    thrown(refused, () -> comm.allGatherAsync(some(4), some(7)), "recv");
    thrown(refused, () -> comm.reduceScatter(some(4), some(4), ReduceOp.SUM), "send", "8");
    thrown(refused, () -> comm.allGather(Tensor.of(new int[2]), Tensor.of(new int[3])), "recv");
    thrown(refused, () -> comm.send(some(1), comm.rank()), "peer", "this rank itself");
    thrown(refused, () -> comm.recv(some(1), 2), "recv: peer is 2", "0 to 1");
    comm.barrier();
  }
}
