// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Turns the C words in messages of the native library into those of Java. */
final class Wording {
  private static final Pattern C_WORD =
      Pattern.compile(
          "\"[^\"]*\"|\\bdt_([a-z_]+)(\\(\\))?|\\b(?:options|spec|state)->([a-z_]+)"
              + "|\\b(send|recv)_(counts|offsets)\\b|\\bNULL\\b");
  /** Functions that the rule of method() does not cover. */
  private static final Map<String, String> METHODS =
      Map.ofEntries(
          Map.entry("abort", "Job.abort"),
          Map.entry("agree", "Job.agree"),
          Map.entry("batch_gradient_sums", "BatchNorm.gradientSums"),
          Map.entry("batch_moments", "BatchNorm.moments"),
          Map.entry("busy_begin", "Job.busyBegin"),
          Map.entry("busy_end", "Job.busyEnd"),
          Map.entry("check_equal", "Comm.checkEqual"),
          Map.entry("comm_create", "Job.createComm"),
          Map.entry("comm_world", "Job.world"),
          Map.entry("finalize", "Job.leave"),
          Map.entry("group_begin", "Comm.groupBegin"),
          Map.entry("group_end", "Comm.groupEnd"),
          Map.entry("init", "Job.init"),
          Map.entry("job_kind_stats", "Job.statistics"),
          Map.entry("job_peer_stats", "Job.peerStatistics"),
          Map.entry("job_stats", "Job.statistics"),
          Map.entry("mem_alloc", "Comm.allocate"),
          Map.entry("mem_free", "Tensor.close"),
          Map.entry("named_stats", "Named.statistics"),
          Map.entry("named_submit", "Named.under"),
          Map.entry("named_submit_group", "Named.group"),
          Map.entry("optimizer", "Optimizer"),
          Map.entry("optimizer_adamw", "Optimizer.adamW"),
          Map.entry("ps_connect", "new Ps"),
          Map.entry("ps_fd", "Ps.workFd"),
          Map.entry("ps_pull", "PsVariable.pull"),
          Map.entry("ps_push", "PsVariable.push"),
          Map.entry("ps_serve", "new PsServer"),
          Map.entry("ps_server_stats", "PsServer.statistics"),
          Map.entry("ps_server_wait", "PsServer.await"),
          Map.entry("ps_set", "PsVariable.set"),
          Map.entry("ps_stats", "Ps.statistics"),
          Map.entry("rank_info", "Job.place"),
          Map.entry("reducer_grad", "Reducer.gradient"),
          Map.entry("reducer_stats", "Reducer.statistics"),
          Map.entry("request_stop", "Job.requestStop"),
          Map.entry("shard_full_grad", "Shard.fullGradient"),
          Map.entry("shard_param", "Shard.parameter"),
          Map.entry("stop_requested", "Job.stopRequested"),
          Map.entry("store_serve", "new StoreServer"),
          Map.entry("store_wait", "Store.await"),
          Map.entry("trace_dump", "Job.traceDump"),
          Map.entry("work_error_info", "Work.error"),
          Map.entry("work_fd", "Comm.workFd"),
          Map.entry("work_share", "Reducer.setHook"),
          Map.entry("work_wait", "Work.await"),
          Map.entry("work_wait_any", "Work.awaitAny"));
  private static final Pattern OBJECT =
      Pattern.compile(
          "(comm|config|job|named|optimizer|outer|ps_server|ps|reducer|sampler|shard|store_server"
              + "|store|work)_([a-z_]+)");
  private static final Map<String, String> OPERATIONS = new HashMap<>();

  static {
    for (OperationKind each : OperationKind.values()) {
      OPERATIONS.put(each.name().toLowerCase(Locale.ROOT), "Comm." + each.method());
    }
  }

  private Wording() {}

  static String inJava(String message) {
    return C_WORD.matcher(message).replaceAll(found -> Matcher.quoteReplacement(word(found)));
  }

  private static String word(MatchResult found) {
    if (found.group().startsWith("\"")) return found.group(); // a name or a path
    if (found.group(1) != null) {
      String method = method(found.group(1));
      return method == null ? found.group() : method;
    }
    if (found.group(3) != null) return camel(found.group(3));
    if (found.group(4) != null) return found.group(4) + "Blocks." + found.group(5);
    return "null";
  }

  /** Null: not a function that Java has. */
  private static String method(String function) {
    String known = METHODS.getOrDefault(function, OPERATIONS.get(function));
    if (known != null) return known;
    Matcher parts = OBJECT.matcher(function);
    if (!parts.matches()) return null;
    String type = camel("_" + parts.group(1));
    return switch (parts.group(2)) {
      case "create" -> "new " + type;
      case "destroy" -> type + ".close";
      default -> type + "." + camel(parts.group(2));
    };
  }

  private static String camel(String snake) {
    return Pattern.compile("_([a-z])")
        .matcher(snake)
        .replaceAll(letter -> letter.group(1).toUpperCase(Locale.ROOT));
  }
}
