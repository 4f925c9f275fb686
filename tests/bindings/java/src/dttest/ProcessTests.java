// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;

import io.dt.Combine;
import io.dt.Comm;
import io.dt.Config;
import io.dt.DataType;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.Param;
import io.dt.PeerLostException;
import io.dt.Reducer;
import io.dt.Sampler;
import io.dt.StoreServer;
import io.dt.SystemException;
import io.dt.Tensor;
import io.dt.Work;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** What needs processes of its own, or class loaders. */
final class ProcessTests {
  private static final String[] ENDS = {"return", "exit", "exit in a handler"};
  private static final List<String> NATIVES = List.of("libdt.so.0", "libdtjava.so");

  private ProcessTests() {}

  static void add() {
    test("a killed rank is named", ProcessTests::death);
    for (String end : ENDS) {
      test("a program that leaves everything open ends well: " + end, () -> leftOpen(end));
    }
    test("the libraries are those of the jar", ProcessTests::libraries);
    test("the manifest enables native access", ProcessTests::manifest);
    test("the jar has the licences of its parts", ProcessTests::licences);
    test("a jar of jars has a place for each file", ProcessTests::ownPaths);
    test("two class loaders", ProcessTests::classLoaders);
    test("the loader says what it tried", ProcessTests::loader);
    test("without files a buffer is refused, and keeps nothing", ProcessTests::withoutFiles);
    test("waiting for no work may be the first call", ProcessTests::awaitFirst);
  }

  /** This program again, on the same class or module path. */
  private static Process start(List<String> options, String... arguments) throws IOException {
    return start("exec", options, arguments);
  }

  /** Behind a command of the shell. */
  private static Process start(String before, List<String> options, String... arguments)
      throws IOException {
    List<String> command = new ArrayList<>(List.of("sh", "-c", before + " \"$@\"", "sh"));
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.addAll(List.of("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"));
    command.addAll(options);
    for (String each : ManagementFactory.getRuntimeMXBean().getInputArguments()) {
      if (each.startsWith("--") || each.startsWith("-Xcheck")) command.add(each);
    }
    command.addAll(List.of("-cp", System.getProperty("java.class.path")));
    command.add(Child.class.getName());
    command.addAll(List.of(arguments));
    return new ProcessBuilder(command).start();
  }

  private static int end(Process process) throws InterruptedException {
    if (!process.waitFor(Ranks.DEADLINE_MS, TimeUnit.MILLISECONDS)) {
      process.destroyForcibly();
      throw new AssertionError("a process hangs");
    }
    return process.exitValue();
  }

  private static String rest(java.io.InputStream stream) throws IOException {
    return new String(stream.readAllBytes(), "UTF-8");
  }

  private static void death() throws Exception {
    try (StoreServer server = Ranks.serve(2)) {
      String port = Integer.toString(server.port());
      Process survivor = start(List.of(), "survivor", "0", port);
      Process victim = start(List.of(), "victim", "1", port);
      BufferedReader said = victim.inputReader();
      equal(said.readLine(), "ready");
      victim.destroyForcibly(); // SIGKILL
      equal(end(survivor), 0);
      equal(rest(survivor.getErrorStream()), "");
      equal(rest(survivor.getInputStream()).trim(),
          "lost rank 1 of " + java.net.InetAddress.getLocalHost().getHostName() + " pid "
              + victim.pid() + "\nleft 0 of 1 with 5.0");
    }
  }

  private static void leftOpen(String how) throws Exception {
    Process process = start(List.of(), "open", how);
    int status = end(process);
    equal(rest(process.getInputStream()), "");
    equal(rest(process.getErrorStream()), "");
    equal(status, 0);
  }

  private static void libraries() throws Exception {
    equal(Child.reduced(), 3f);
    equal(Job.class.getModule().isNamed(), System.getProperty("dttest.module") != null);
    List<String> lines = Files.readAllLines(Path.of("/proc/self/maps"));
    Set<String> found = new HashSet<>();
    for (String line : lines) {
      if (!line.matches(".*/lib(crypto|ssl|uv|dt|dtjava)\\.so.*")) continue;
      that(line.contains("/dt-native-") && line.endsWith("(deleted)"), line);
      found.add(line.substring(line.lastIndexOf('/') + 1, line.lastIndexOf(' ')));
    }
    equal(found, Set.copyOf(NATIVES));
  }

  private static void classLoaders() throws Exception {
    List<URL> urls = new ArrayList<>();
    for (String each : paths().split(File.pathSeparator)) urls.add(Path.of(each).toUri().toURL());
    for (int i = 0; i < 2; i++) {
      try (URLClassLoader loader =
          new URLClassLoader(urls.toArray(new URL[0]), ClassLoader.getPlatformClassLoader())) {
        Method child = loader.loadClass(Child.class.getName()).getMethod("reduced");
        equal(child.invoke(null), 3f);
      }
    }
    equal(Child.reduced(), 3f);
    // All of them share one libdt.
    long libraries =
        Files.readAllLines(Path.of("/proc/self/maps")).stream()
            .filter(line -> line.contains("/libdt.so.0"))
            .map(line -> line.substring(line.indexOf('/')))
            .distinct()
            .count();
    equal(libraries, 1L);
  }

  /** The jars, also where dt's is on the module path. */
  private static String paths() {
    String modules = System.getProperty("jdk.module.path");
    String classes = System.getProperty("java.class.path");
    return modules == null ? classes : modules + File.pathSeparator + classes;
  }

  private static void loader() throws Exception {
    Path empty = Files.createTempDirectory("dttest");
    try {
      Process process = start(List.of("-Ddt.library.path=" + empty), "load");
      equal(end(process), 0);
      String said = rest(process.getInputStream());
      that(said.contains(empty.resolve("libdtjava.so").toString()), said);
      that(said.contains("dt.library.path"), said);
      // Where nothing can be copied there are other folders.
      process = start(List.of("-Djava.io.tmpdir=" + empty.resolve("none")), "load");
      equal(end(process), 0);
      equal(rest(process.getInputStream()).trim(), "loaded");
      // The libraries of the jar, laid out as another package would.
      try (var jar = new java.util.zip.ZipFile(jar())) {
        for (String name : NATIVES) {
          Files.copy(jar.getInputStream(jar.getEntry("io/dt/native/linux-x64/" + name)),
              empty.resolve(name));
        }
      }
      process = start(List.of("-Ddt.library.path=" + empty), "load");
      equal(end(process), 0);
      equal(rest(process.getInputStream()).trim(), "loaded");
      Files.copy(Path.of(System.getProperty("dttest.other_abi")), empty.resolve("libdt.so.0"),
          StandardCopyOption.REPLACE_EXISTING);
      process = start(List.of("-Ddt.library.path=" + empty), "load");
      equal(end(process), 0);
      List<String> lines = rest(process.getInputStream()).lines().toList();
      that(lines.get(0).contains("ABI 4711") && lines.get(0).contains("ABI 0"), lines.get(0));
      equal(lines.get(1), lines.get(0));
    } finally {
      try (var files = Files.list(empty)) {
        for (Path each : files.toList()) Files.delete(each);
      }
      Files.delete(empty);
    }
  }

  private static void licences() throws Exception {
    try (var jar = new java.util.jar.JarFile(jar())) {
      for (String name : List.of("LICENSE", "THIRD_PARTY_LICENSES.txt")) {
        var entry = jar.getEntry("META-INF/licenses/io.dt/" + name);
        that(rest(jar.getInputStream(entry)).contains("Apache License"), name);
      }
    }
  }

  private static void manifest() throws Exception {
    try (var jar = new java.util.jar.JarFile(jar())) {
      equal(jar.getManifest().getMainAttributes().getValue("Enable-Native-Access"), "ALL-UNNAMED");
    }
  }

  /** A generic path would collide with another library's files. */
  private static void ownPaths() throws Exception {
    try (var jar = new java.util.jar.JarFile(jar())) {
      for (var each : Collections.list(jar.entries())) {
        String name = each.getName();
        that(
            name.startsWith("io/dt/") || name.startsWith("META-INF/maven/io.dt/dt/")
                || name.startsWith("META-INF/licenses/io.dt/")
                || List.of("META-INF/", "META-INF/MANIFEST.MF", "module-info.class").contains(name),
            name);
      }
    }
  }

  private static void withoutFiles() throws Exception {
    Process process = start("ulimit -n 256; exec", List.of(), "files");
    int status = end(process);
    equal(rest(process.getErrorStream()), "");
    equal(status, 0);
  }

  private static void awaitFirst() throws Exception {
    Process process = start(List.of(), "await");
    equal(end(process), 0);
    equal(rest(process.getInputStream()).trim(), "3.0");
  }

  private static String jar() {
    for (String each : paths().split(File.pathSeparator)) {
      if (new File(each).getName().startsWith("dt-")) return each;
    }
    throw new AssertionError("no jar of dt in " + paths());
  }

  /** What the started processes do. */
  public static final class Child {
    private Child() {}

    private static final List<Object> OPEN = Collections.synchronizedList(new ArrayList<>());

    /** @param arguments what to be */
    public static void main(String[] arguments) throws Exception {
      switch (arguments[0]) {
        case "survivor": survive(Integer.parseInt(arguments[2])); break;
        case "victim": wait(Integer.parseInt(arguments[2])); break;
        case "load": load(); break;
        case "await": awaitNothing(); break;
        case "files": useAllFiles(); break;
        default: leaveOpen(arguments[1]); break;
      }
    }

    /** The library works in this class loader. */
    public static float reduced() {
      try (Job job = Job.init(); Comm comm = job.world()) {
        FloatBuffer value = Ranks.floats(1).put(0, 3);
        comm.allReduceAsync(Tensor.of(value)).future().join();
        job.leave();
        return value.get(0);
      }
    }

    private static void load() {
      for (int i = 0; i < 2; i++) { // the same each time
        try {
          io.dt.Dt.version();
          System.out.println("loaded");
          return;
        } catch (UnsatisfiedLinkError e) {
          System.out.println(e.getMessage());
        }
      }
    }

    private static void awaitNothing() {
      try {
        Work.awaitAny(List.of(), Duration.ZERO);
      } catch (InvalidArgumentException e) {
        System.out.println(reduced());
      }
    }

    private static void useAllFiles() throws Exception {
      long count = 64 << 20;
      List<Param> params = List.of(new Param("w", count, DataType.U8));
      try (Job job = Job.init(); Comm comm = job.world()) {
        Tensor memory = comm.allocate(count, DataType.U8);
        Reducer reducer = new Reducer(comm, params);
        long[] addresses = {memory.address(), reducer.gradientAddress(0)};
        List<InputStream> files = new ArrayList<>();
        Check.thrown(
            IOException.class,
            () -> {
              for (;;) files.add(new FileInputStream("/dev/null"));
            });
        try {
          Check.thrown(
              SystemException.class, memory::buffer, "Tensor.buffer: ", "Too many open files",
              "ulimit -n");
          Check.thrown(
              SystemException.class, () -> reducer.gradient(0), "Reducer.gradient: ",
              "Too many open files");
        } finally {
          for (InputStream each : files) each.close();
        }
        for (long each : addresses) that(mapped(each), "it is there");
        reducer.close();
        memory.close();
        for (long each : addresses) that(!mapped(each), "nobody keeps it");
        job.leave();
      }
    }

    private static boolean mapped(long address) throws IOException {
      for (String line : Files.readAllLines(Path.of("/proc/self/maps"))) {
        String[] range = line.substring(0, line.indexOf(' ')).split("-");
        if (Long.parseUnsignedLong(range[0], 16) <= address
            && address < Long.parseUnsignedLong(range[1], 16)) {
          return true;
        }
      }
      return false;
    }

    private static void survive(int port) throws Exception {
      try (Config config = Ranks.config(0, 2, port); Job job = Job.init(config);
          Comm comm = job.world()) {
        Tensor one = Tensor.of(Ranks.floats(1));
        comm.allReduce(one);
        try {
          comm.allReduce(one);
        } catch (PeerLostException e) {
          System.out.println("lost rank " + e.rank() + " of " + e.host() + " pid " + e.pid());
        }
        try (Comm left = comm.shrink()) {
          float[] five = {5};
          left.allReduce(Tensor.of(five));
          System.out.println(
              "left " + left.rank() + " of " + left.size() + " with " + five[0]);
          // The world is the smaller one now, whose works end, too.
          try (Comm world = job.world()) {
            world.barrierAsync().future().get(30, TimeUnit.SECONDS);
          }
        }
      }
    }

    private static void wait(int port) throws Exception {
      try (Config config = Ranks.config(1, 2, port); Job job = Job.init(config);
          Comm comm = job.world()) {
        Tensor one = Tensor.of(Ranks.floats(1));
        comm.allReduce(one);
        System.out.println("ready");
        System.in.read(); // until it is killed
      }
    }

    private static void leaveOpen(String how) throws Exception {
      // The store's thread logs, also while the virtual machine ends.
      Config serving = new Config();
      serving.set("job.id", "test").set("job.world_size", "2").set("log.level", "debug");
      serving.setLogSink((level, message) -> OPEN.add(message));
      StoreServer server = new StoreServer(serving);
      for (int r = 0; r < 2; r++) {
        Config config = Ranks.config(r, 2, server.port());
        boolean last = r == 1;
        Thread thread = new Thread(() -> rank(config, last));
        thread.setDaemon(true);
        thread.start();
        if (last) thread.join();
      }
      OPEN.add(List.of(serving, server));
      if (how.startsWith("exit in")) {
        Job job = Job.init();
        OPEN.add(job.world().barrierAsync().future().thenRun(() -> System.exit(0)));
      }
      if (how.equals("exit")) System.exit(0);
    }

    /** Rank 0 stays inside a collective that rank 1 never calls. */
    private static void rank(Config config, boolean last) {
      Job job = Job.init(config);
      Comm comm = job.world();
      Reducer reducer = new Reducer(comm, List.of(new Param("w", 100, DataType.F32)));
      Tensor tensor = comm.allocate(1024, DataType.F32);
      FloatBuffer buffer = tensor.buffer().asFloatBuffer();
      Work done = comm.allReduceAsync(tensor);
      done.await();
      synchronized (OPEN) {
        OPEN.addAll(List.of(config, job, comm, reducer, buffer, done, new Sampler(comm, 9, 0)));
        // Its function runs while the virtual machine ends.
        Combine slowly = Combine.of((in, inOut) -> LockSupport.parkNanos(20_000_000));
        OPEN.add(comm.allReduceAsync(Tensor.of(Ranks.floats(1 << 18)), slowly));
        if (last) return;
        OPEN.add(comm.allReduceAsync(Tensor.of(Ranks.floats(9))));
      }
      comm.barrier();
    }
  }
}
