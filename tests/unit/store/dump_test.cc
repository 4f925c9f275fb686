// SPDX-License-Identifier: Apache-2.0
// A tool asks all ranks for their traces.
#include <doctest/doctest.h>

#include "fixture.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;
using Outcome = DumpAnswer::Outcome;

namespace {

std::shared_ptr<Client> tool_of(Job& job) {
  ClientOptions options = job.client_options(-1);
  options.job_id.clear();
  options.attempt = -1;
  auto tool = Client::connect(job.loop.get(), options, patiently());
  REQUIRE(tool.ok());
  return std::move(tool).value();
}

}  // namespace

TEST_CASE("every rank is asked, with the directory; each answer is told") {
  Job job(3);
  const auto ranks = job.join_all();
  for (int32_t rank = 0; rank < 2; ++rank) {
    ranks[static_cast<size_t>(rank)]->on_dump_request(
        [rank](const std::string& directory, const Client::DumpAnswerer& answer) {
          if (rank == 0) return answer(directory + "/file");
          answer(Status(Code::kSystem, "no room"));
        });
  }
  const auto answers = tool_of(job)->dump_traces("/some/where", patiently());
  REQUIRE(answers.ok());
  REQUIRE(answers.value().size() == 3);
  CHECK(answers.value()[0].outcome == Outcome::kWritten);
  CHECK(answers.value()[0].text == "/some/where/file");
  CHECK(answers.value()[0].member.text() == "rank 0 (hostA pid 10)");
  CHECK(answers.value()[1].outcome == Outcome::kFailed);
  CHECK(answers.value()[1].text == "no room");
  CHECK(answers.value()[2].outcome == Outcome::kFailed);
  CHECK(answers.value()[2].text == "this process records nothing");
}

TEST_CASE("who does not answer is silent, who never came is absent") {
  Job job(3);
  const auto quiet = job.connect(0);
  const auto quick = job.connect(1);
  const auto kept = std::make_shared<Guarded<std::vector<Client::DumpAnswerer>>>();
  quiet->on_dump_request([kept](const std::string&, Client::DumpAnswerer answer) {
    kept->with([&](auto& all) { all.push_back(std::move(answer)); });
  });
  quick->on_dump_request(
      [](const std::string&, const Client::DumpAnswerer& answer) { answer(std::string("file")); });
  const auto tool = tool_of(job);
  const auto answers = tool->dump_traces("", briefly(300));
  REQUIRE(answers.ok());
  REQUIRE(answers.value().size() == 3);
  CHECK(answers.value()[0].outcome == Outcome::kSilent);
  CHECK(answers.value()[1].outcome == Outcome::kWritten);
  CHECK(answers.value()[2].outcome == Outcome::kAbsent);
  // An answer that comes too late is nobody's, and the next request is one of its own.
  kept->with([](auto& all) { all.at(0)(std::string("late")); });
  quiet->on_dump_request([](const std::string&, const Client::DumpAnswerer& answer) {
    answer(std::string("in time"));
  });
  const auto again = tool->dump_traces("", patiently());
  REQUIRE(again.ok());
  CHECK(again.value()[0].text == "in time");
}

TEST_CASE("one request at a time; a rank that ends meanwhile is waited for no longer") {
  Job job(1);
  auto rank = job.connect(0);
  const auto asked = std::make_shared<Event>();
  rank->on_dump_request([asked](const std::string&, const Client::DumpAnswerer&) { asked->set(); });
  const auto first = tool_of(job);
  const auto second = tool_of(job);
  Result<std::vector<DumpAnswer>> answers = Status();
  std::thread waiting([&] { answers = first->dump_traces("", patiently()); });
  CHECK(asked->wait(patiently()));
  const auto refused = second->dump_traces("", patiently());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message() ==
        "another request for traces is under way; ask again when it has ended");
  rank = nullptr;
  waiting.join();
  REQUIRE(answers.ok());
  REQUIRE(answers.value().size() == 1);
  CHECK(answers.value()[0].outcome == Outcome::kAbsent);
  CHECK(answers.value()[0].text == "it ended when it was asked");
}

TEST_CASE("a tool that goes away leaves room for the next") {
  Job job(1);
  const auto rank = job.connect(0);
  const auto asked = std::make_shared<Event>();
  rank->on_dump_request([asked](const std::string&, const Client::DumpAnswerer&) { asked->set(); });
  Interrupt interrupt;
  std::thread impatient([&] {
    (void)tool_of(job)->dump_traces("", Wait{Deadline::after_ms(kPatienceMs), &interrupt});
  });
  CHECK(asked->wait(patiently()));
  interrupt.fire(Status(Code::kAborted, "enough"));
  impatient.join();
  rank->on_dump_request(
      [](const std::string&, const Client::DumpAnswerer& answer) { answer(std::string("file")); });
  // The end of the other tool may be on its way still.
  const auto tool = tool_of(job);
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  Result<std::vector<DumpAnswer>> answers = tool->dump_traces("", patiently());
  while (answers.status().code() == Code::kInvalidState && !deadline.passed()) {
    answers = tool->dump_traces("", patiently());
  }
  REQUIRE(answers.ok());
  CHECK(answers.value()[0].outcome == Outcome::kWritten);
}

TEST_CASE("DumpAnswer: survives the encoding, and a part of it is none") {
  std::vector<DumpAnswer> answers = {{{3, "hostB", 7}, Outcome::kWritten, "/x"},
                                     {{4, "", 0}, Outcome::kAbsent, "why"}};
  const std::string bytes = encode(answers);
  std::vector<DumpAnswer> found;
  REQUIRE(decode(bytes, &found));
  CHECK(encode(found) == bytes);
  CHECK(found[1].outcome == Outcome::kAbsent);
  for (size_t length = 0; length < bytes.size(); ++length) {
    std::vector<DumpAnswer> part;
    CHECK(!decode(std::string_view(bytes).substr(0, length), &part));
  }
}
