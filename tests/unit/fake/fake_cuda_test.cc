// SPDX-License-Identifier: Apache-2.0
#include "fake_cuda.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

using dt::Code;
using dt::Deadline;
using dt::Result;
using dt::Wait;
using dt::cuda::Event;
using dt::cuda::Memory;
using dt::cuda::Stream;
using dt::cuda::StreamPriority;
using dt::test::FakeCuda;

namespace {

const Wait kSoon{Deadline::after_ms(30'000)};

Stream new_stream(FakeCuda& cuda) {
  Result<Stream> stream = cuda.create_stream(StreamPriority::kNormal);
  REQUIRE(stream.ok());
  return stream.value();
}

Event new_event(FakeCuda& cuda, bool timed = false) {
  Result<Event> event = cuda.create_event(timed);
  REQUIRE(event.ok());
  return event.value();
}

bool has_passed(FakeCuda& cuda, Event event) {
  const Result<bool> passed = cuda.passed(event);
  REQUIRE(passed.ok());
  return passed.value();
}

}  // namespace

TEST_CASE("work of a stream runs in its order, after the call has returned") {
  FakeCuda cuda;
  const Stream stream = new_stream(cuda);
  dt::Event gate;
  std::vector<int> order;
  REQUIRE(cuda.launch(stream, [&] { gate.wait(kSoon); }).ok());
  for (int i = 0; i < 5; ++i) {
    REQUIRE(cuda.launch(stream, [&order, i] { order.push_back(i); }).ok());
  }
  CHECK_FALSE(cuda.finish(stream, Deadline::after_ms(0)));
  gate.set();
  REQUIRE(cuda.finish(stream));
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("streams are independent, and the default stream is one of them") {
  dt::Event gate;
  FakeCuda cuda;
  const Stream stuck = new_stream(cuda);
  REQUIRE(cuda.launch(stuck, [&] { gate.wait(kSoon); }).ok());
  bool ran = false;
  REQUIRE(cuda.launch(nullptr, [&] { ran = true; }).ok());
  CHECK(cuda.finish(nullptr));
  CHECK(ran);
  gate.set();
}

TEST_CASE("an event passes when its stream comes to it; an earlier recording does not count") {
  FakeCuda cuda;
  const Stream stream = new_stream(cuda);
  const Event event = new_event(cuda);
  CHECK(has_passed(cuda, event));  // never recorded
  dt::Event gates[2];
  for (dt::Event& gate : gates) {
    REQUIRE(cuda.launch(stream, [&] { gate.wait(kSoon); }).ok());
    REQUIRE(cuda.record(event, stream).ok());
  }
  gates[0].set();
  CHECK_FALSE(has_passed(cuda, event));
  gates[1].set();
  REQUIRE(cuda.finish(stream));
  CHECK(has_passed(cuda, event));
  CHECK(cuda.counters().queries == 3);
  CHECK(cuda.counters().host_waits == 1);
}

TEST_CASE("a stream waits for what was recorded when wait() was called, also of another device") {
  FakeCuda one(0);
  FakeCuda other(1);
  const Stream producer = new_stream(one);
  const Stream consumer = new_stream(other);
  const Event event = new_event(one);
  std::vector<int> order;
  // Never recorded: no wait.
  REQUIRE(other.wait(consumer, event).ok());
  REQUIRE(other.finish(consumer));
  dt::Event gate;
  REQUIRE(one.launch(producer, [&] { gate.wait(kSoon), order.push_back(1); }).ok());
  REQUIRE(one.record(event, producer).ok());
  REQUIRE(other.wait(consumer, event).ok());
  REQUIRE(other.launch(consumer, [&] { order.push_back(2); }).ok());
  // A later recording on an idle stream does not end that wait.
  REQUIRE(one.record(event, nullptr).ok());
  REQUIRE(one.finish(nullptr));
  CHECK_FALSE(other.finish(consumer, Deadline::after_ms(0)));
  gate.set();
  REQUIRE(other.finish(consumer));
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE("elapsed_ms is the time between two timed events that have passed") {
  FakeCuda cuda;
  const Stream stream = new_stream(cuda);
  const Event begin = new_event(cuda, true);
  const Event end = new_event(cuda, true);
  const Event untimed = new_event(cuda);
  CHECK_FALSE(cuda.elapsed_ms(begin, end).ok());
  cuda.set_delay_us(2000);
  REQUIRE(cuda.record(begin, stream).ok());
  REQUIRE(cuda.record(end, stream).ok());
  REQUIRE(cuda.record(untimed, stream).ok());
  REQUIRE(cuda.finish(stream));
  REQUIRE(cuda.elapsed_ms(begin, end).ok());
  CHECK(cuda.elapsed_ms(begin, end).value() >= 2.0f);
  CHECK(cuda.elapsed_ms(begin, untimed).status().code() == Code::kCuda);
}

TEST_CASE("memory is counted, known by every address in it, and copied in stream order") {
  FakeCuda cuda(3);
  const FakeCuda other(4);
  const Stream stream = new_stream(cuda);
  CHECK(cuda.allocate(0).value() == nullptr);
  CHECK(cuda.release(nullptr).ok());
  void* device = cuda.allocate(1000).value();
  void* pinned = cuda.allocate_pinned(1000).value();
  memset(pinned, 7, 1000);
  const FakeCuda::Counters before = cuda.counters();
  REQUIRE(cuda.fill_zero(device, 1000, stream).ok());
  REQUIRE(cuda.copy(device, pinned, 10, stream).ok());
  REQUIRE(cuda.finish(stream));
  CHECK(static_cast<char*>(device)[9] == 7);
  CHECK(static_cast<char*>(device)[10] == 0);
  CHECK(cuda.counters().allocations == before.allocations);
  CHECK(cuda.counters().operations == before.operations + 2);
  CHECK(before.allocations == 1);
  CHECK(before.pinned_allocations == 1);
  const auto inside = cuda.pointer_info(static_cast<char*>(device) + 999).value();
  CHECK(inside.memory == Memory::kDevice);
  CHECK(inside.device == 3);
  CHECK(cuda.pointer_info(static_cast<char*>(device) + 1000).value().memory == Memory::kHost);
  CHECK(cuda.pointer_info(pinned).value().memory == Memory::kPinned);
  CHECK(cuda.pointer_info(&cuda).value().memory == Memory::kHost);
  CHECK(cuda.release(pinned).code() == Code::kCuda);
  REQUIRE(cuda.release(device).ok());
  CHECK_FALSE(cuda.release(device).ok());
  REQUIRE(cuda.release_pinned(pinned).ok());
  CHECK(cuda.counters().live_allocations == 0);
}

TEST_CASE("a capturing stream runs no work, and a destroyed one takes none") {
  dt::Event ran;
  FakeCuda cuda;
  const Stream stream = new_stream(cuda);
  CHECK_FALSE(cuda.is_capturing(stream).value());
  cuda.set_capturing(stream, true);
  CHECK(cuda.is_capturing(stream).value());
  bool captured_ran = false;
  CHECK(cuda.launch(stream, [&] { captured_ran = true; }).ok());
  CHECK_FALSE(FakeCuda::enqueue(stream, [&] { captured_ran = true; }));
  const Event event = new_event(cuda);
  CHECK(cuda.record(event, stream).ok());
  CHECK_FALSE(cuda.passed(event).ok());
  const Stream other = new_stream(cuda);
  CHECK(cuda.wait(other, event).ok());
  CHECK(cuda.is_capturing(other).value());  // as of the same graph
  CHECK(cuda.launch(other, [&] { captured_ran = true; }).ok());
  cuda.set_capturing(stream, false);
  CHECK_FALSE(cuda.is_capturing(other).value());
  CHECK_FALSE(cuda.passed(event).ok());
  CHECK_FALSE(cuda.wait(stream, event).ok());
  CHECK(cuda.finish(stream));
  CHECK(cuda.finish(other));
  CHECK_FALSE(captured_ran);
  CHECK(cuda.record(event, stream).ok());
  CHECK(cuda.finish(stream));
  CHECK(has_passed(cuda, event));
  REQUIRE(cuda.launch(stream, [&] { ran.set(); }).ok());
  REQUIRE(cuda.destroy_stream(stream).ok());
  CHECK(ran.wait(kSoon));  // what was enqueued still runs
  CHECK_FALSE(cuda.fill_zero(nullptr, 0, stream).ok());
  CHECK_FALSE(cuda.destroy_stream(stream).ok());
  REQUIRE(cuda.destroy_stream(other).ok());
  CHECK(cuda.counters().live_streams == 0);
}

TEST_CASE("failures come when ordered") {
  FakeCuda cuda(2);
  cuda.fail("cudaMalloc", 1, 2);
  const auto first = cuda.allocate(1);
  CHECK(first.ok());
  const auto failed = cuda.allocate(1);
  CHECK(failed.status().code() == Code::kOutOfMemory);
  CHECK(failed.status().message() == "cudaMalloc on device 2: a failure that the test ordered");
  CHECK_FALSE(cuda.allocate(1).ok());
  const auto last = cuda.allocate(1);
  CHECK(last.ok());
  for (const auto& memory : {first, last}) CHECK(cuda.release(memory.value()).ok());
  cuda.fail("cudaEventRecord");
  const Event event = new_event(cuda);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(cuda.record(event, nullptr).ok());
  CHECK(has_passed(cuda, event));
}

TEST_CASE("the device is what the test says") {
  FakeCuda::Options options;
  options.index = 5;
  options.device.name = "H999";
  options.device.multiprocessors = 132;
  const FakeCuda cuda(options);
  CHECK(cuda.device().index == 5);
  CHECK(cuda.device().name == "H999");
  CHECK(cuda.device().multiprocessors == 132);
  CHECK(cuda.device().bus_id == "0000:05:00.0");
  CHECK(cuda.device().uuid == "GPU-fake-0005");
}
