// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;

import io.dt.Blocks;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.OperationKind;
import io.dt.ReduceOp;
import io.dt.Tensor;
import io.dt.Work;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Every operation, in each of its forms and with each kind of memory, against collectives.json,
 * whose fields make_collectives.py explains.
 */
final class MatrixTests {
  private static final int FORMS = 5;
  private static final Pattern FIELD = Pattern.compile("\"(\\w+)\": \"?([^\",}]*)");
  private static final Pattern CALL = Pattern.compile("\\{([^{}]*)}");

  private MatrixTests() {}

  static void add() {
    for (int n : new int[] {1, 2, 3}) {
      for (Storage storage : Storage.values()) {
        test("operations of " + n + " ranks on " + storage, () -> all(n, storage));
      }
    }
    test("every kind is among the cases", () -> {
      EnumSet<OperationKind> kinds = EnumSet.of(OperationKind.RECV);
      for (Case each : cases()) kinds.add(each.kind());
      equal(kinds, EnumSet.allOf(OperationKind.class));
    });
  }

  private record Case(String line, Map<String, String> fields, List<Map<String, String>> calls) {
    OperationKind kind() {
      return OperationKind.valueOf(fields.get("kind").toUpperCase(Locale.ROOT));
    }

    DataType dtype() {
      return DataType.valueOf(fields.get("dtype").toUpperCase(Locale.ROOT));
    }
  }

  private static List<Case> cases() throws Exception {
    List<Case> cases = new ArrayList<>();
    Path path = Path.of(System.getProperty("dttest.vectors"), "collectives.json");
    for (String line : Files.readAllLines(path)) {
      int calls = line.indexOf("\"calls\"");
      if (calls < 0) continue;
      List<Map<String, String>> all = new ArrayList<>();
      Matcher call = CALL.matcher(line.substring(calls));
      while (call.find()) all.add(fields(call.group(1)));
      cases.add(new Case(line, fields(line.substring(0, calls)), all));
    }
    return cases;
  }

  private static Map<String, String> fields(String text) {
    Map<String, String> fields = new HashMap<>();
    Matcher field = FIELD.matcher(text);
    while (field.find()) fields.put(field.group(1), field.group(2));
    return fields;
  }

  private static void all(int ranks, Storage storage) throws Exception {
    List<Case> cases = cases();
    Ranks.run(ranks, (job, world) -> {
      int forms = storage.onHeap() ? 1 : storage == Storage.BYTES ? FORMS : 2;
      for (int form = 0; form < forms; form++) {
        for (Case each : cases) {
          if (each.calls.size() != ranks || !storage.has(each.dtype())) continue;
          try {
            new Call(each, world, storage, form).run();
          } catch (Throwable e) {
            String what = "form " + form + ", rank " + world.rank() + ": " + each.line;
            throw new AssertionError(what, e);
          }
        }
      }
    });
  }

  /** What one rank does in one case. */
  private static final class Call {
    private final OperationKind kind;
    private final ReduceOp op;
    private final int root;
    private final Comm world;
    private final Storage storage;
    private final DataType dtype;
    private final int form;
    private final Map<String, String> given;
    private Tensor send;
    private Tensor recv;

    Call(Case of, Comm world, Storage storage, int form) {
      kind = of.kind();
      op = ReduceOp.valueOf(of.fields.get("op").toUpperCase(Locale.ROOT));
      root = Integer.parseInt(of.fields.get("peer"));
      dtype = of.dtype();
      given = of.calls.get(world.rank());
      this.world = world;
      this.storage = storage;
      this.form = form;
    }

    void run() throws Exception {
      Storage.Place out = place("send");
      Storage.Place in = place("recv");
      send = out == null ? null : out.tensor();
      recv = in == null ? null : in.tensor();
      long[] own = numbers("own");
      if (own != null && in == null) recv = send.slice(own[0], own[1]);
      if (own != null && in != null) send = recv.slice(own[0], own[1]);
      call();
      String wanted = given.get("result");
      if (wanted == null) return;
      byte[] found = (in == null ? out : in).bytes().get();
      int from = in == null ? (int) own[0] * dtype.bytes() : 0;
      equal(HexFormat.of().formatHex(found, from, from + wanted.length() / 2), wanted);
    }

    private Storage.Place place(String name) {
      if (!given.containsKey(name)) return null;
      return storage.make(world, dtype, HexFormat.of().parseHex(given.get(name)));
    }

    private long[] numbers(String name) {
      if (!given.containsKey(name)) return null;
      return Arrays.stream(given.get(name).split(" ")).mapToLong(Long::parseLong).toArray();
    }

    private Blocks blocks(String side) {
      long[] counts = numbers(side + "_counts");
      long[] offsets = numbers(side + "_offsets");
      if (counts == null) return null;
      return offsets == null ? Blocks.of(counts) : Blocks.of(counts, offsets);
    }

    private void call() throws Exception {
      Blocks to = blocks("send");
      Blocks from = blocks("recv");
      boolean inPlace = given.containsKey("own");
      switch (kind) {
        case ALLREDUCE -> {
          if (inPlace && op == ReduceOp.SUM) {
            each(() -> world.allReduce(recv), () -> world.allReduceAsync(recv));
          } else if (inPlace) {
            each(() -> world.allReduce(recv, op), () -> world.allReduceAsync(recv, op));
          } else {
            each(() -> world.allReduce(send, recv, op), () -> world.allReduceAsync(send, recv, op));
          }
        }
        case REDUCE -> each(() -> world.reduce(send, recv, op, root),
            () -> world.reduceAsync(send, recv, op, root));
        case BROADCAST -> each(() -> world.broadcast(recv, root),
            () -> world.broadcastAsync(recv, root));
        case ALLGATHER -> each(() -> world.allGather(send, recv),
            () -> world.allGatherAsync(send, recv));
        case REDUCE_SCATTER -> each(() -> world.reduceScatter(send, recv, op),
            () -> world.reduceScatterAsync(send, recv, op));
        case BARRIER -> each(world::barrier, world::barrierAsync);
        case SEND -> transfer();
        case ALLTOALL -> each(() -> world.allToAll(send, recv),
            () -> world.allToAllAsync(send, recv));
        case ALLTOALLV -> each(() -> world.allToAll(send, to, recv, from),
            () -> world.allToAllAsync(send, to, recv, from));
        case GATHER -> each(() -> world.gather(send, recv, root),
            () -> world.gatherAsync(send, recv, root));
        case GATHERV -> each(() -> world.gather(send, recv, from, root),
            () -> world.gatherAsync(send, recv, from, root));
        case SCATTER -> each(() -> world.scatter(send, recv, root),
            () -> world.scatterAsync(send, recv, root));
        case SCATTERV -> each(() -> world.scatter(send, to, recv, root),
            () -> world.scatterAsync(send, to, recv, root));
        case ALLGATHERV -> each(() -> world.allGather(send, recv, from),
            () -> world.allGatherAsync(send, recv, from));
        case REDUCE_SCATTERV -> each(() -> world.reduceScatter(send, to, recv, op),
            () -> world.reduceScatterAsync(send, to, recv, op));
        case RECV -> throw new AssertionError("no case has this kind");
      }
    }

    /** Blocking, or by a work, a future or a time. */
    private void each(Runnable blocking, Supplier<Work> async) throws Exception {
      if (form == 0) {
        blocking.run();
        return;
      }
      try (Work work = async.get()) {
        if (form == 1) work.await();
        if (form == 2) work.future().get(30, TimeUnit.SECONDS);
        if (form == 3) that(work.await(Duration.ofSeconds(30)), "it takes too long");
        if (form == 4) work.waitStream(0);
        that(work.test(), "a waited work is done");
        that(work.error() == null, "no error");
      }
    }

    /** Around a ring; calls that wait begin with rank 0. */
    private void transfer() throws Exception {
      int to = Integer.parseInt(given.get("to"));
      int from = Integer.parseInt(given.get("from"));
      Work sending = form == 0 ? null : world.sendAsync(send, to);
      if (form == 0 && world.rank() == 0) world.send(send, to);
      each(() -> world.recv(recv, from), () -> world.recvAsync(recv, from));
      if (form == 0 && world.rank() != 0) world.send(send, to);
      if (sending != null) sending.await();
    }
  }
}
