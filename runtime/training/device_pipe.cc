// SPDX-License-Identifier: Apache-2.0
#include "training/device_pipe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "training/stream_marks.h"

namespace dt::training {

Result<std::unique_ptr<DevicePipe>> DevicePipe::create(std::shared_ptr<comm::Communicator> comm) {
  std::unique_ptr<DevicePipe> made(new DevicePipe(std::move(comm)));
  cuda::Runtime& on = *made->runtime_;
  DT_TRY_VALUE(made->down_, on.create_stream(cuda::StreamPriority::kNormal));
  DT_TRY_VALUE(made->up_, on.create_stream(cuda::StreamPriority::kNormal));
  DT_TRY_VALUE(made->edge_, on.create_event(/*timed=*/false));
  const auto blocks = static_cast<int64_t>(made->blocks_.size());
  DT_TRY_VALUE(void* const memory, on.allocate_pinned(2 * blocks * kPartBytes));
  made->memory_ = static_cast<char*>(memory);
  char* next = made->memory_;
  for (Block& block : made->blocks_) {
    block.data = next;
    block.beside = next + kPartBytes;
    next += 2 * kPartBytes;
    DT_TRY_VALUE(block.down, on.create_event(/*timed=*/false));
    DT_TRY_VALUE(block.up, on.create_event(/*timed=*/false));
  }
  return made;
}

DevicePipe::~DevicePipe() {
  const Deadline deadline = Deadline::after_ms(kLastStepMs);
  if (edge_ != nullptr && busy_ && !await_both(deadline, /*broken_too=*/true).ok())
    return;  // what it uses stays
  for (const Block& block : blocks_) {
    if (block.down != nullptr) (void)runtime_->destroy_event(block.down);
    if (block.up != nullptr) (void)runtime_->destroy_event(block.up);
  }
  if (memory_ != nullptr) (void)runtime_->release_pinned(memory_);
  if (edge_ != nullptr) (void)runtime_->destroy_event(edge_);
  if (up_ != nullptr) (void)runtime_->destroy_stream(up_);
  if (down_ != nullptr) (void)runtime_->destroy_stream(down_);
}

Status DevicePipe::run(std::span<const Part> parts, cuda::Stream stream, const Work& work) {
  if (parts.empty()) return {};
  busy_ = true;
  DT_TRY(runtime_->record(edge_, stream));
  DT_TRY(runtime_->wait(down_, edge_));
  if (stream != up_) DT_TRY(runtime_->wait(up_, edge_));
  for (Block& block : blocks_) block.goes_up = false;
  const Status done = run_parts(parts, work);
  if (stream != up_) {  // also after a failure: some parts may be on their way
    DT_TRY(runtime_->record(edge_, up_));
    DT_TRY(runtime_->wait(stream, edge_));
  }
  return done;
}

Status DevicePipe::run_parts(std::span<const Part> parts, const Work& work) {
  const size_t ahead = blocks_.size() - 1;  // one is with the host
  for (size_t next = 0; next < parts.size() + ahead; ++next) {
    if (next < parts.size()) DT_TRY(bring_down(parts[next], &blocks_[next % blocks_.size()]));
    if (next < ahead) continue;
    const size_t i = next - ahead;
    Block& block = blocks_[i % blocks_.size()];
    DT_TRY(await_event(*comm_, block.down, comm_->deadline(), /*broken_too=*/false));
    DT_TRY(work(i, block.data, block.beside));
    DT_TRY(bring_up(parts[i], &block));
  }
  return {};
}

Status DevicePipe::bring_down(const Part& part, Block* block) {
  if (block->goes_up) DT_TRY(runtime_->wait(down_, block->up));
  if (part.down) DT_TRY(runtime_->copy(block->data, part.data, part.bytes, down_));
  if (part.beside != nullptr) {
    DT_TRY(runtime_->copy(block->beside, part.beside, part.bytes, down_));
  }
  return runtime_->record(block->down, down_);
}

Status DevicePipe::bring_up(const Part& part, Block* block) {
  if (!part.up) return {};
  DT_TRY(runtime_->copy(part.data, block->data, part.bytes, up_));
  DT_TRY(runtime_->record(block->up, up_));
  block->goes_up = true;
  return {};
}

Status DevicePipe::transfer(std::span<const Mirror> mirrors, bool up) {
  std::vector<Part> parts;
  std::vector<char*> copies;  // on the host, of each part
  for (const Mirror& each : mirrors) {
    for (int64_t begin = 0; begin < each.bytes; begin += kPartBytes) {
      const int64_t bytes = std::min(each.bytes - begin, kPartBytes);
      parts.push_back({static_cast<char*>(each.device) + begin, nullptr, bytes, !up, up});
      copies.push_back(static_cast<char*>(each.host) + begin);
    }
  }
  if (parts.empty()) return {};
  DT_TRY(run(parts, stream(), [&](size_t part, char* data, char*) {
    std::memcpy(up ? data : copies[part], up ? copies[part] : data,
                static_cast<size_t>(parts[part].bytes));
    return Status();
  }));
  return await();
}

Status DevicePipe::await() { return await_both(comm_->deadline(), /*broken_too=*/false); }

Status DevicePipe::await_both(Deadline deadline, bool broken_too) {
  for (const cuda::Stream stream : {down_, up_}) {
    DT_TRY(runtime_->record(edge_, stream));
    DT_TRY(await_event(*comm_, edge_, deadline, broken_too));
  }
  busy_ = false;
  return {};
}

}  // namespace dt::training
