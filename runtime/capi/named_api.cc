// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

#include "capi/operation.h"
#include "training/named.h"

namespace dt::capi {
namespace {

constexpr int32_t kMaxGroup = 65536;
constexpr size_t kLongestName = 1000;

template <class F>
dt_status on_named(const char* function, dt_named* named, F&& body) noexcept {
  return on<NamedObject>(
      function, named, "named",
      [&](const Call& call, const std::shared_ptr<NamedObject>& object) -> Status {
        return body(call, *object);
      });
}

Status read_named_options(const Call& call, const dt_named_options* options,
                          training::Named::Options* out) {
  dt_named_options standard;
  dt_named_options_init(&standard);
  dt_named_options asked;
  DT_TRY(read_options(call, options != nullptr ? options : &standard, "options",
                      "dt_named_options_init", &asked));
  const auto check = [&](const char* field, int64_t value) -> Status {
    if (value >= 0) return {};
    return call.invalid("options->%s is %lld; it must be at least 0", field,
                        static_cast<long long>(value));
  };
  DT_TRY(check("fuse_bytes", asked.fuse_bytes));
  DT_TRY(check("cache", asked.cache));
  DT_TRY(check("stall_ms", asked.stall_ms));
  DT_TRY(check("cycle_us", asked.cycle_us));
  out->fuse_bytes = asked.fuse_bytes;
  out->cache = asked.cache;
  constexpr int64_t kMostMs = int64_t{1} << 40;  // decades
  out->stall_ms = std::min(asked.stall_ms, kMostMs);
  out->cycle_us = std::min(asked.cycle_us, kMostMs * 1000);
  return {};
}

/// `out_works` NULL: waits for all of them.
Status submit_all(const Call& call, const NamedObject& object, const char* const* names,
                  const dt_collective* const* collectives, int32_t count, bool group,
                  dt_work** out_works) {
  DT_TRY(object.on->comm->check_ungrouped(call.function()));
  std::vector<training::Named::Submission> submissions(static_cast<size_t>(count));
  std::vector<std::shared_ptr<WorkObject>> works;
  std::unordered_set<std::string> seen;
  for (int32_t i = 0; i < count; ++i) {
    training::Named::Submission& submission = submissions[static_cast<size_t>(i)];
    const std::string argument = group ? format("names[%d]", i) : "name";
    DT_TRY(call.not_null(names[i], argument.c_str()));
    submission.name = names[i];
    if (submission.name.empty() || submission.name.size() > kLongestName) {
      return call.invalid("%s has %zu bytes; it must have 1 to %zu", argument.c_str(),
                          submission.name.size(), kLongestName);
    }
    if (!seen.insert(submission.name).second) {
      return call.invalid("%s is \"%s\", which is in the group before", argument.c_str(), names[i]);
    }
    DT_TRY_VALUE(submission.collective, read_collective(call, *object.on, collectives[i]));
    submission.work = object.on->comm->new_work();
    works.push_back(object.on->works.make());
    works.back()->job = object.job;
    works.back()->work = submission.work;
  }
  // The handles come first: once it is submitted nothing may fail.
  std::vector<NewWork> handles(out_works != nullptr ? works.size() : 0);
  for (size_t i = 0; i < handles.size(); ++i) DT_TRY(handles[i].give(call, works[i]));
  DT_TRY(object.named->submit(std::move(submissions), group));
  if (out_works != nullptr) {
    for (size_t i = 0; i < handles.size(); ++i) handles[i].keep(&out_works[i]);
    return {};
  }
  Status status;
  for (const auto& each : works) {
    (void)wait_for(each, Deadline::never());
    const Status ended = each->work->status();
    if (status.ok()) status = ended;
  }
  return status;
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_named_create(dt_comm* comm, const dt_named_options* options, dt_named** out_named) {
  return on_comm("dt_named_create", comm, [&](const Call& call, const CommPtr& on) -> Status {
    DT_TRY(call.not_null(out_named, "out_named"));
    DT_TRY(on->comm->check_ungrouped("dt_named_create"));
    training::Named::Options chosen;
    DT_TRY(read_named_options(call, options, &chosen));
    chosen.logger = on->job->logger();
    auto object = std::make_shared<NamedObject>();
    object->job = on->job;
    object->on = on;
    DT_TRY_VALUE(object->named, training::Named::create(on->comm, std::move(chosen)));
    on->job->threads().add(object->named->background(),
                           [weak = std::weak_ptr<training::Named>(object->named)] {
                             if (const auto named = weak.lock()) named->close();
                           });
    return call.give(std::move(object), out_named);
  });
}

dt_status dt_named_submit(dt_named* named, const char* name, const dt_collective* collective,
                          dt_work** out_work) {
  return on_named("dt_named_submit", named,
                  [&](const Call& call, const NamedObject& object) -> Status {
                    return submit_all(call, object, &name, &collective, 1, false, out_work);
                  });
}

dt_status dt_named_submit_group(dt_named* named, const char* const* names,
                                const dt_collective* const* collectives, int32_t count,
                                dt_work** out_works) {
  return on_named("dt_named_submit_group", named,
                  [&](const Call& call, const NamedObject& object) -> Status {
                    DT_TRY(call.not_null(names, "names"));
                    DT_TRY(call.not_null(collectives, "collectives"));
                    if (count < 1 || count > kMaxGroup) {
                      return call.invalid("count is %d; it must be in [1, %d]", count, kMaxGroup);
                    }
                    return submit_all(call, object, names, collectives, count, true, out_works);
                  });
}

dt_status dt_named_join(dt_named* named, int64_t timeout_ms, int32_t* out_last_rank) {
  return on_named(
      "dt_named_join", named, [&](const Call& call, const NamedObject& object) -> Status {
        DT_TRY(call.not_null(out_last_rank, "out_last_rank"));
        const auto joined = object.named->join(Wait{Deadline::after_ms(timeout_ms), nullptr});
        DT_TRY(joined.status());
        *out_last_rank = joined.value();
        return {};
      });
}

dt_status dt_named_report(dt_named* named, int64_t timeout_ms, char* buffer, int64_t capacity_bytes,
                          int64_t* out_bytes) {
  return on_named(
      "dt_named_report", named, [&](const Call& call, const NamedObject& object) -> Status {
        DT_TRY(copy_out(call, "", buffer, capacity_bytes, out_bytes, true));
        const auto report = object.named->report(Wait{Deadline::after_ms(timeout_ms), nullptr});
        DT_TRY(report.status());
        const std::string text(report.value().c_str(), report.value().size() + 1);  // with its NUL
        return copy_out(call, text, buffer, capacity_bytes, out_bytes);
      });
}

dt_status dt_named_stats(dt_named* named, dt_named_statistics* out_statistics) {
  return on_named(
      "dt_named_stats", named, [&](const Call& call, const NamedObject& object) -> Status {
        DT_TRY(call.not_null(out_statistics, "out_statistics"));
        DT_TRY(call.known_size(out_statistics->struct_size, sizeof(dt_named_statistics),
                               "out_statistics", "dt_named_statistics_init"));
        const training::Named::Statistics from = object.named->statistics();
        dt_named_statistics filled;
        dt_named_statistics_init(&filled);
        filled.struct_size = out_statistics->struct_size;
        filled.answers = from.answers;
        filled.tensors = from.tensors;
        filled.operations = from.operations;
        filled.fused_tensors = from.fused_tensors;
        filled.fused_bytes = from.fused_bytes;
        filled.cache_hits = from.cache_hits;
        filled.stalls = from.stalls;
        memcpy(out_statistics, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
        return {};
      });
}

void dt_named_destroy(dt_named* named) {
  // A call of another thread keeps the object, and must end as well.
  (void)guard("dt_named_destroy", [&](const Call&) -> Status {
    const auto found = handle_table().find(named, HandleKind::kNamed);
    if (found.ok()) std::static_pointer_cast<NamedObject>(found.value())->named->close();
    return {};
  });
  destroy<NamedObject>(named);
}

}  // extern "C"
