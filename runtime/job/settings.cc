// SPDX-License-Identifier: Apache-2.0
#include "job/settings.h"

#include "base/processors.h"

namespace dt::job {
namespace {

Status refused(const Config& config, const char* key, const Status& why) {
  const std::string& where = config.source_of(key).where;
  return why.within(std::string(key) + (where.empty() ? "" : " of ") + where);
}

}  // namespace

Result<std::vector<int32_t>> progress_processors(const Config& config) {
  constexpr const char* kKey = "host.progress_cpus";
  auto processors = parse_processors(config.text(kKey));
  if (!processors.ok()) return refused(config, kKey, processors.status());
  const Status usable = check_processors(processors.value());
  if (!usable.ok()) return refused(config, kKey, usable);
  return processors;
}

Result<NumaWish> numa_wish(const Config& config) {
  constexpr const char* kKey = "host.numa";
  auto wish = parse_numa(config.text(kKey));
  return wish.ok() ? std::move(wish) : Result<NumaWish>(refused(config, kKey, wish.status()));
}

Status check_settings(const Config& config) {
  DT_TRY(config.check_together());
  DT_TRY(progress_processors(config).status());
  return numa_wish(config).status();
}

}  // namespace dt::job
