// SPDX-License-Identifier: Apache-2.0
// NCCL: which one a job would use, what is known of it, and what it is told.
#include "backend/nccl/conf.h"
#include "backend/nccl/library.h"
#include "backend/nccl/settings.h"
#include "cli/doctor/checks.h"

namespace dt::cli::doctor {
namespace {

/// The last clause of an error is the advice.
Finding judged(Grade grade, const std::string& message) {
  const size_t end = message.rfind("; ");
  if (end == std::string::npos) return {grade, message, "see dt config", {}};
  return {grade, message.substr(0, end), message.substr(end + 2), {}};
}

std::string joined(const std::vector<std::string>& items, const char* separator) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : separator) + item;
  return text;
}

bool is_usable(const Library& nccl) { return nccl.found && nccl.error.empty(); }

/// What the environment, dt.toml and NCCL's files say, with the source of each.
struct Lines {
  std::vector<std::string> shown;
  std::vector<std::string> compared;

  void add(const std::string& line, const std::string& source) {
    shown.push_back(line + " (" + source + ")");
    compared.push_back(line);
  }
};

Lines lines_of(const nccl::Settings& settings, const Machine& machine) {
  const Environment& environment = machine.environment;
  Lines lines;
  Environment others = environment;
  for (const nccl::Variable& each : settings.variables()) {
    const auto inherited = environment.find(each.name);
    const bool yields = settings.inherited_wins() && inherited != environment.end() &&
                        inherited->second != each.value;
    if (yields) continue;  // shown as inherited
    lines.add((each.name.empty() ? each.key : each.name) + "=" + each.value, each.source);
    others.erase(each.name);
  }
  for (const auto& [name, value] : others) {
    if (name.rfind("NCCL_", 0) != 0) continue;
    lines.add(name + "=" + value, "inherited");
    if (name == "NCCL_RAS_ADDR") lines.compared.pop_back();  // each node's own port
  }
  for (const nccl::ConfLine& line : machine.nccl_conf) {
    if (nccl::counts(line, environment)) {
      lines.add(line.name + "=" + line.value, nccl::where(line));
    }
  }
  return lines;
}

}  // namespace

Finding look_at_nccl(const Machine& machine) {
  const Library& nccl = machine.nccl;
  const bool wanted = wants_gpus(machine);
  const bool named = !machine.config.text("nccl.library").empty();
  if (!nccl.found && !named) {
    if (!wanted) return {Grade::kGood, "no libnccl.so.2, and no GPU that needs it", {}, {}};
    return {Grade::kWarning,
            "no libnccl.so.2",
            "pip install nvidia-nccl-cu13, or give nccl.library",
            {}};
  }
  if (!is_usable(nccl)) return judged(wanted ? Grade::kBad : Grade::kWarning, nccl.error);
  Finding finding;
  finding.compared = nccl::version_text(nccl.version);
  finding.text = finding.compared + ", " + nccl.path;
  finding.text +=
      nccl.origin == nccl::kSoname ? " (by the loader's search)" : " (" + nccl.origin + ")";
  if (!nccl.missing.empty()) finding.text += "; without " + joined(nccl.missing, ", ");
  if (!wanted || nccl.version >= nccl::kRecommendedVersion) return finding;
  finding.grade = Grade::kWarning;
  finding.advice =
      "NCCL 2.22 and newer end all communicators of a GPU together after a failure: "
      "update it";
  return finding;
}

Finding look_at_nccl_faults(const Machine& machine) {
  if (!is_usable(machine.nccl)) return {Grade::kGood, "not looked for: no NCCL", {}, {}};
  Finding finding;
  finding.compared = nccl::version_text(machine.nccl.version);
  std::vector<std::string> texts;
  for (const nccl::Fault& fault : nccl::known_faults(machine.nccl.version)) {
    const bool fixed = fault.fixed_in != 0;
    texts.push_back(fault.text + " " +
                    (fixed ? "Fixed in " + nccl::version_text(fault.fixed_in) + "."
                           : std::string("In all releases.")));
  }
  finding.text = texts.empty() ? "none known" : joined(texts, " ");
  return finding;
}

Finding look_at_nccl_settings(const Machine& machine) {
  const Environment& environment = machine.environment;
  const Result<nccl::Settings> settings = nccl::Settings::read(machine.config);
  if (!settings.ok()) return judged(Grade::kBad, settings.status().message());
  const Lines lines = lines_of(settings.value(), machine);
  Finding finding;
  finding.text = lines.shown.empty() ? "none: NCCL decides" : joined(lines.shown, ", ");
  finding.compared = joined(lines.compared, " ") + " ";
  // The worst first: one line has one advice.
  for (const nccl::Obstacle& obstacle : nccl::obstacles(environment)) {
    const Grade grade = obstacle.fatal && wants_gpus(machine) ? Grade::kBad : Grade::kWarning;
    if (grade <= finding.grade) continue;
    Finding told = judged(grade, obstacle.text);
    told.compared = finding.compared;
    finding = told;
  }
  if (finding.grade != Grade::kGood) return finding;
  const std::string replaced = nccl::replaced_text(settings.value(), environment);
  if (!replaced.empty()) {
    Finding told = judged(Grade::kWarning, replaced);
    told.compared = finding.compared;
    return told;
  }
  if (!is_usable(machine.nccl)) return finding;
  const auto ignored = nccl::ignored_by(settings.value(), machine.nccl.version);
  if (ignored.empty()) return finding;
  finding.grade = Grade::kWarning;
  finding.text = joined(ignored, ", ") + ", and this one is " +
                 nccl::version_text(machine.nccl.version) + ", which ignores it";
  finding.advice = "update NCCL, or remove the setting";
  return finding;
}

Finding look_at_nccl_files(const Machine& machine) {
  if (machine.nccl_conf.empty()) return {Grade::kGood, "none with a setting", {}, {}};
  const Result<nccl::Settings> settings = nccl::Settings::read(machine.config);
  if (!settings.ok()) return {Grade::kGood, "not compared: see NCCL settings", {}, {}};
  std::vector<std::string> places;
  for (const nccl::ConfLine& line : machine.nccl_conf) {
    places.push_back(line.name + " (" + nccl::where(line) + ")");
  }
  Finding finding{Grade::kGood, joined(places, ", "), {}, kNotCompared};
  const auto found = nccl::conf_obstacles(settings.value(), machine.environment, machine.nccl_conf);
  if (found.empty()) return finding;
  finding = judged(found.front().fatal && wants_gpus(machine) ? Grade::kBad : Grade::kWarning,
                   found.front().text);
  finding.compared = kNotCompared;
  return finding;
}

}  // namespace dt::cli::doctor
