// SPDX-License-Identifier: Apache-2.0
#include "ps/table.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "kernels/host/optimize.h"

namespace dt::ps {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void adagrad(float* values, const float* gradient, float* squares, int64_t elements, double rate,
             double epsilon) {
  for (int64_t i = 0; i < elements; ++i) {
    squares[i] += gradient[i] * gradient[i];
    values[i] -= static_cast<float>(rate * gradient[i] / (std::sqrt(double{squares[i]}) + epsilon));
  }
}

}  // namespace

Result<std::unique_ptr<Table>> Table::create(const Variable& variable, int32_t server,
                                             int32_t servers) {
  std::unique_ptr<Table> table(new Table(variable, server, servers));
  table->rows_ = table->partition_.count(server);
  // At most 2^50 bytes each, which check() sees to: no overflow.
  const int64_t updates = aligned(table->rows_ * 4);
  const int64_t array = aligned(table->rows_ * variable.row_bytes());
  const int64_t bytes = updates + array * (1 + variable.moments());
  auto memory = training::MappedMemory::create(bytes, "");
  if (memory.status().code() == Code::kOutOfMemory) {
    return Status(Code::kOutOfMemory,
                  format("variable \"%s\": cannot get %lld bytes of memory; start more parameter "
                         "servers (--servers), or give the variable fewer rows",
                         variable.name.c_str(), static_cast<long long>(bytes)));
  }
  DT_TRY(memory.status());
  table->memory_ = std::move(memory).value();
  char* at = table->memory_->data();
  if (at == nullptr) return table;  // it keeps no row
  // With huge pages (transparent_hugepage=always) each row that is used would take 2 MiB.
  (void)madvise(at, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
  table->updates_ = reinterpret_cast<uint32_t*>(at);
  at += updates;
  table->values_ = reinterpret_cast<float*>(at);
  for (int i = 0; i < variable.moments(); ++i) {
    at += array;
    table->moments_[i] = reinterpret_cast<float*>(at);
  }
  return table;
}

float* Table::use(int64_t place, int64_t count) {
  for (int64_t each = place; each < place + count; ++each) {
    if ((updates_[each] & kUsed) != 0) continue;
    updates_[each] |= kUsed;
    const int64_t row = partition_.row_at(server_, each);
    float* const values = values_ + each * variable_.columns;
    for (int32_t i = 0; i < variable_.columns; ++i) values[i] = initial_value(variable_, row, i);
  }
  return values_ + place * variable_.columns;
}

const float* Table::read(int64_t place, int64_t count) { return use(place, count); }

void Table::set(int64_t place, int64_t count, const float* values) {
  memcpy(use(place, count), values, static_cast<size_t>(count * variable_.row_bytes()));
}

void Table::push(int64_t place, int64_t count, const float* gradients, double rate) {
  (void)use(place, count);
  if (rate < 0) rate = variable_.rate;
  const int64_t end = place + count;
  while (place < end) {
    // Rows that were updated equally often are one array to the optimizer.
    const uint32_t before = updates_[place];
    const uint32_t now = before == UINT32_MAX ? before : before + 1;
    int64_t next = place;
    while (next < end && updates_[next] == before) updates_[next++] = now;
    const int64_t elements = (next - place) * variable_.columns;
    update(place, elements, gradients, rate, now & ~kUsed);
    gradients += elements;
    place = next;
  }
}

void Table::update(int64_t place, int64_t elements, const float* gradients, double rate,
                   double times) {
  const int64_t skipped = place * variable_.columns;
  float* const values = values_ + skipped;
  switch (variable_.method) {
    case Method::kSgd:
    case Method::kMomentum: {
      kernels::SgdStep step{};
      step.momentum_kept = variable_.momentum;
      step.share = 1;
      step.rate = rate;
      step.nesterov = variable_.nesterov;
      float* const momentum = variable_.method == Method::kSgd ? nullptr : moments_[0] + skipped;
      return kernels::sgd(Dtype::kF32, step, {values, gradients, momentum, elements});
    }
    case Method::kAdagrad:
      return adagrad(values, gradients, moments_[0] + skipped, elements, rate, variable_.epsilon);
    case Method::kAdam: {
      kernels::AdamWStep step{};
      step.first_share = 1 - variable_.beta1;
      step.second_kept = variable_.beta2;
      step.second_share = 1 - variable_.beta2;
      step.kept = 1;
      step.rate = rate / (1 - std::pow(variable_.beta1, times));
      step.unbias = 1 / std::sqrt(1 - std::pow(variable_.beta2, times));
      step.epsilon = variable_.epsilon;
      return kernels::adamw(
          Dtype::kF32, step,
          {values, gradients, moments_[0] + skipped, moments_[1] + skipped, elements});
    }
  }
}

}  // namespace dt::ps
