// SPDX-License-Identifier: Apache-2.0
#include "ps/variable.h"

#include <algorithm>
#include <cmath>

#include "base/xxh64.h"
#include "config/value.h"

namespace dt::ps {
namespace {

constexpr int64_t kStripeBytes = 4096;
constexpr int64_t kMostVariableBytes = int64_t{1} << 50;  // of its values
/// What a checkpoint calls its own; see checkpoint.h.
constexpr const char* kReservedNames[] = {"updates.", "optimizer.", "variable.", "server.",
                                          "__metadata__"};

Status wrong(const std::string& field, const std::string& why) {
  return Status(Code::kInvalidArgument, field + " " + why);
}

Status check_number(const char* field, double value, double least, double below) {
  if (value >= least && value < below) return {};
  return wrong(field, std::isinf(below) ? format("is %g; it must be at least %g", value, least)
                                        : format("is %g; it must be at least %g and below %g",
                                                 value, least, below));
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mix(uint64_t bits) {
  bits += 0x9e37'79b9'7f4a'7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58'476d'1ce4'e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d0'49bb'1331'11eb;
  return bits ^ (bits >> 31);
}

/// In (0, 1).
double unit(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

const char* text(Method method) {
  switch (method) {
    case Method::kSgd: return "sgd";
    case Method::kMomentum: return "momentum";
    case Method::kAdagrad: return "adagrad";
    case Method::kAdam: return "adam";
  }
  return "?";
}

}  // namespace

int Variable::moments() const {
  switch (method) {
    case Method::kSgd: return 0;
    case Method::kMomentum:
    case Method::kAdagrad: return 1;
    case Method::kAdam: return 2;
  }
  return 0;
}

Status check(const Variable& variable) {
  constexpr double kInfinity = HUGE_VAL;
  if (variable.name.empty() || variable.name.size() > kLongestName) {
    return wrong(
        "name", format("has %zu bytes; it must have 1 to %zu", variable.name.size(), kLongestName));
  }
  if (config::find_bad_utf8(variable.name)) return wrong("name", "is not UTF-8");
  for (const char* const reserved : kReservedNames) {
    if (variable.name.rfind(reserved, 0) == 0) {
      return wrong("name", format("is \"%s\"; names that begin with \"%s\" are those of a "
                                  "checkpoint; give another",
                                  variable.name.c_str(), reserved));
    }
  }
  if (variable.rows < 1 || variable.rows > kMostRows) {
    return wrong("rows",
                 format("is %lld; it must be in [1, %lld]", static_cast<long long>(variable.rows),
                        static_cast<long long>(kMostRows)));
  }
  if (variable.columns < 1 || variable.columns > kMostColumns) {
    return wrong("columns", format("is %d; it must be in [1, %d]", variable.columns, kMostColumns));
  }
  if (variable.rows > kMostVariableBytes / variable.row_bytes()) {
    return wrong("rows", format("is %lld, of %d columns; a variable may have 2^48 elements",
                                static_cast<long long>(variable.rows), variable.columns));
  }
  if (variable.method < Method::kSgd || variable.method > Method::kAdam) {
    return wrong("optimizer", format("is %d, which is none", static_cast<int>(variable.method)));
  }
  if (variable.initial < Initial::kConstant || variable.initial > Initial::kNormal) {
    return wrong("initial", format("is %d, which is none", static_cast<int>(variable.initial)));
  }
  if (!std::isfinite(variable.initial_value)) {
    return wrong("initial_value", format("is %g", variable.initial_value));
  }
  DT_TRY(check_number("rate", variable.rate, 0, kInfinity));
  DT_TRY(check_number("momentum", variable.momentum, 0, 1));
  DT_TRY(check_number("beta1", variable.beta1, 0, 1));
  DT_TRY(check_number("beta2", variable.beta2, 0, 1));
  return check_number("epsilon", variable.epsilon, 0, kInfinity);
}

void put(ByteWriter& out, const Variable& variable) {
  out.put(variable.name);
  out.put(variable.rows);
  out.put(variable.columns);
  out.put(variable.method);
  out.put(variable.rate);
  out.put(variable.momentum);
  out.put(static_cast<int32_t>(variable.nesterov));
  out.put(variable.beta1);
  out.put(variable.beta2);
  out.put(variable.epsilon);
  out.put(variable.initial);
  out.put(variable.initial_value);
  out.put(variable.seed);
}

Variable get_variable(ByteReader& in) {
  Variable variable;
  variable.name = in.text();
  variable.rows = in.get<int64_t>();
  variable.columns = in.get<int32_t>();
  variable.method = in.get<Method>();
  variable.rate = in.get<double>();
  variable.momentum = in.get<double>();
  variable.nesterov = in.get<int32_t>() != 0;
  variable.beta1 = in.get<double>();
  variable.beta2 = in.get<double>();
  variable.epsilon = in.get<double>();
  variable.initial = in.get<Initial>();
  variable.initial_value = in.get<double>();
  variable.seed = in.get<uint64_t>();
  return variable;
}

std::string difference(const Variable& there, const Variable& here) {
  const auto differ = [](const char* field, double a, double b) {
    return format("%s is %.17g there and %.17g here", field, a, b);
  };
  if (there.rows != here.rows) {
    return format("rows is %lld there and %lld here", static_cast<long long>(there.rows),
                  static_cast<long long>(here.rows));
  }
  if (there.columns != here.columns) {
    return format("columns is %d there and %d here", there.columns, here.columns);
  }
  if (there.method != here.method) {
    return format("optimizer is %s there and %s here", text(there.method), text(here.method));
  }
  if (there.rate != here.rate) return differ("rate", there.rate, here.rate);
  if (there.momentum != here.momentum) return differ("momentum", there.momentum, here.momentum);
  if (there.nesterov != here.nesterov) return differ("nesterov", there.nesterov, here.nesterov);
  if (there.beta1 != here.beta1) return differ("beta1", there.beta1, here.beta1);
  if (there.beta2 != here.beta2) return differ("beta2", there.beta2, here.beta2);
  if (there.epsilon != here.epsilon) return differ("epsilon", there.epsilon, here.epsilon);
  if (there == here) return {};
  return "they begin with different values";
}

float initial_value(const Variable& variable, int64_t row, int32_t column) {
  if (variable.initial == Initial::kConstant) return static_cast<float>(variable.initial_value);
  const uint64_t element = static_cast<uint64_t>(row) * static_cast<uint64_t>(variable.columns) +
                           static_cast<uint64_t>(column);
  const uint64_t bits = mix(mix(variable.seed) ^ element);
  if (variable.initial == Initial::kUniform) {
    return static_cast<float>(variable.initial_value * (2 * unit(bits) - 1));
  }
  // Box and Muller 1958.
  const double radius = std::sqrt(-2 * std::log(unit(bits)));
  return static_cast<float>(variable.initial_value * radius * std::cos(2 * M_PI * unit(mix(bits))));
}

Partition::Partition(const Variable& variable, int32_t servers)
    : rows_(variable.rows),
      stripe_(std::max<int64_t>(kStripeBytes / variable.row_bytes(), 1)),
      servers_(servers),
      first_(static_cast<int32_t>(xxh64(variable.name.data(), variable.name.size()) %
                                  static_cast<uint64_t>(servers))) {}

int64_t Partition::row_at(int32_t server, int64_t place) const {
  const int64_t stripe = place / stripe_ * servers_ + first_stripe(server);
  return stripe * stripe_ + place % stripe_;
}

int64_t Partition::count(int32_t server) const {
  const int64_t stripes = (rows_ + stripe_ - 1) / stripe_;
  const int64_t first = first_stripe(server);
  if (first >= stripes) return 0;
  const int64_t own = (stripes - 1 - first) / servers_ + 1;
  const bool has_last = (stripes - 1 - first) % servers_ == 0;
  return own * stripe_ - (has_last ? stripes * stripe_ - rows_ : 0);
}

}  // namespace dt::ps
