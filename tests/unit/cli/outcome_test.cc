// SPDX-License-Identifier: Apache-2.0
#include "cli/run/outcome.h"

#include <doctest/doctest.h>
#include <signal.h>

#include "cli/run/fleet_words.h"
#include "store/messages.h"

using dt::cli::Candidate;
using dt::cli::decide;
using dt::cli::lines_that_fit;
using dt::cli::NodeEnds;
using dt::cli::Outcome;
using dt::cli::OutcomeFacts;
using dt::cli::RankEnd;
using dt::cli::tails_room;
using Strings = std::vector<std::string>;

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

int exited(int code) { return code << 8; }  // as waitpid says it

// Node `node` with two ranks, which ended as said after a second.
NodeEnds node_of(int node, int first_status, int second_status) {
  NodeEnds ends;
  ends.node = node;
  ends.host = "n" + std::to_string(node);
  ends.first_rank = 2 * node;
  for (const int status : {first_status, second_status}) {
    RankEnd end;
    end.pid = 100 * node + 10 + static_cast<int>(ends.ends.size());
    end.started_ns = 1;
    end.ended_ns = 1 + kSecondNs;
    end.wait_status = status;
    ends.ends.push_back(end);
  }
  return ends;
}

void add_candidate(NodeEnds* ends, int index, bool killed = false) {
  ends->candidates.push_back({index, killed, {"last words of " + std::to_string(index)}});
  if (ends->first < 0) ends->first = index;
}

OutcomeFacts two_nodes() {
  OutcomeFacts facts;
  facts.node_count = 2;
  return facts;
}

}  // namespace

TEST_CASE("all well is silent") {
  const Outcome outcome = decide({node_of(0, 0, 0), node_of(1, 0, 0)}, two_nodes());
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.headline.empty());
  CHECK_FALSE(outcome.restart);
}

TEST_CASE("the failure that was recorded first is the cause, with its last lines") {
  NodeEnds a = node_of(0, exited(1), exited(1));
  NodeEnds b = node_of(1, SIGTERM, exited(7));
  add_candidate(&a, 0);
  add_candidate(&a, 1);
  add_candidate(&b, 1);
  OutcomeFacts facts = two_nodes();
  facts.first_recorded = 3;
  const Outcome outcome = decide({a, b}, facts);
  CHECK(outcome.exit_code == 7);
  CHECK(outcome.rank == 3);
  CHECK(outcome.headline == "rank 3 (host n1 pid 111) exited with code 7 after 1.0 s");
  CHECK(outcome.tail == Strings{"last words of 1"});
  CHECK(outcome.followers ==
        "3 ranks ended because of it: ranks 0-1 exited with code 1; rank 2 killed by SIGTERM");
}

TEST_CASE("a program or shared library that was not found is explained") {
  const std::string loader =
      "./hello: error while loading shared libraries: libdt.so.0: cannot open shared object file: "
      "No such file or directory";
  const std::string remedy =
      ": link the program with -Wl,-rpath,FOLDER (pkg-config --libs dt does for libdt), or add its "
      "folder to LD_LIBRARY_PATH";
  const std::string code_127 =
      "; 127 means that a program, or a shared library that it needs, was not found";
  const auto reason = [](int wait_status, Strings tail) {
    NodeEnds node = node_of(0, wait_status, wait_status);
    add_candidate(&node, 0);
    node.candidates[0].tail = std::move(tail);
    const std::string line = decide({node}, {}).headline;
    return line.substr(line.find(" after 1.0 s") + 12);
  };
  CHECK(reason(exited(127), {loader}) == "; the loader did not find libdt.so.0" + remedy);
  CHECK(reason(exited(127), {loader, "from stdout"}) ==
        "; the loader did not find libdt.so.0" + remedy);
  CHECK(
      reason(exited(1), {"Traceback", "ImportError: libx.so.3: cannot open shared object file"}) ==
      "; the loader did not find libx.so.3" + remedy);
  CHECK(reason(exited(1), {"a b.so: cannot open shared object file"}) ==
        "; the loader did not find a b.so" + remedy);
  CHECK(reason(exited(127), {"sh: 1: trian: not found"}) == code_127);
  CHECK(reason(exited(127), {}) == code_127);
  CHECK(reason(exited(1), {"warning: libcuda.so.1: cannot open shared object file", "no data"}) ==
        "");
  CHECK(reason(exited(1), {}) == "");
  CHECK(reason(SIGKILL, {loader}) == "");
}

TEST_CASE("the job's store knows better than the order of the reports") {
  NodeEnds a = node_of(0, exited(1), 0);
  NodeEnds b = node_of(1, exited(1), 0);
  add_candidate(&a, 0);
  add_candidate(&b, 0);
  OutcomeFacts facts = two_nodes();
  facts.first_recorded = 0;
  facts.first_told = 2;
  CHECK(decide({a, b}, facts).rank == 2);
  facts.first_told = 3;  // ended well: it was not the cause
  CHECK(decide({a, b}, facts).rank == 0);
  facts.first_told = 99;
  CHECK(decide({a, b}, facts).rank == 0);
}

TEST_CASE("a SIGKILL from outside is a cause, whoever reported first") {
  NodeEnds a = node_of(0, exited(1), exited(1));
  NodeEnds b = node_of(1, exited(1), SIGKILL);
  add_candidate(&a, 0);
  add_candidate(&b, 0);
  add_candidate(&b, 1, true);
  OutcomeFacts facts = two_nodes();
  facts.first_recorded = 0;
  facts.first_told = 2;
  b.oom_text = "; the OOM killer was here";
  const Outcome outcome = decide({a, b}, facts);
  CHECK(outcome.exit_code == 128 + SIGKILL);
  CHECK(outcome.headline ==
        "rank 3 (host n1 pid 111) killed by SIGKILL after 1.0 s; the OOM killer was here");
}

TEST_CASE("a rank that was silent is the cause, however late it ends and in whatever way") {
  NodeEnds a = node_of(0, exited(9), exited(9));
  NodeEnds b = node_of(1, exited(9), SIGTERM);
  b.ends[1].ended_ns = 1 + 3 * kSecondNs;  // too late to be a candidate
  add_candidate(&a, 0);
  add_candidate(&b, 0);
  OutcomeFacts facts = two_nodes();
  facts.first_recorded = 0;
  facts.first_told = 3;
  CHECK(decide({a, b}, facts).rank == 0);
  facts.told_silent = true;
  const Outcome outcome = decide({a, b}, facts);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.headline ==
        "rank 3 (host n1 pid 111) killed by SIGTERM after 3.0 s; before, it gave no sign of life, "
        "and the others took it for lost");
  CHECK(outcome.followers == "3 ranks ended because of it: ranks 0-2 exited with code 9");
  b.ends[1].wait_status = 0;  // it went on, and ended well
  CHECK(decide({a, b}, facts).exit_code == 1);
  facts.first_told = 99;
  CHECK(decide({a, b}, facts).rank == 0);
  CHECK(decide({node_of(0, 0, 0), node_of(1, 0, 0)}, facts).exit_code == 0);
}

TEST_CASE("a stopped rank that the others timed out waiting for is the cause") {
  NodeEnds a = node_of(0, exited(9), exited(9));
  NodeEnds b = node_of(1, exited(9), SIGTERM);
  add_candidate(&a, 0);
  add_candidate(&b, 0);
  OutcomeFacts facts = two_nodes();
  facts.first_recorded = facts.first_told = 0;
  facts.told_late = 3;
  CHECK(decide({a, b}, facts).rank == 0);  // it was late, but not stopped
  b.ends[1].stopped = true;
  const Outcome outcome = decide({a, b}, facts);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.headline ==
        "rank 3 (host n1 pid 111) killed by SIGTERM after 1.0 s; before, it was stopped (as by "
        "SIGSTOP), and the others timed out waiting for it");
  CHECK(outcome.followers == "3 ranks ended because of it: ranks 0-2 exited with code 9");
  NodeEnds read;
  REQUIRE(decode(encode(b), &read));
  CHECK(read.ends[1].stopped);
  CHECK_FALSE(read.ends[0].stopped);
  for (const int other : {2, 99, -1}) {  // nobody waited for it
    facts.told_late = other;
    CHECK(decide({a, b}, facts).rank == 0);
  }
  facts.told_late = 3;
  add_candidate(&a, 1, true);  // a SIGKILL from outside counts more
  facts.first_recorded = 1;
  CHECK(decide({a, b}, facts).rank == 1);
}

TEST_CASE("where others go on, the job ends well if a rank ends well after all that failed") {
  NodeEnds a = node_of(0, 0, SIGKILL);
  NodeEnds b = node_of(1, exited(9), 0);
  for (RankEnd& end : b.ends) {  // another clock
    end.started_ns += 100 * kSecondNs;
    end.ended_ns += 100 * kSecondNs;
  }
  b.ends[1].ended_ns += kSecondNs;
  add_candidate(&a, 1, true);
  add_candidate(&b, 0);
  OutcomeFacts facts = two_nodes();
  CHECK(decide({a, b}, facts).exit_code == 128 + SIGKILL);
  facts.others_go_on = true;
  const Outcome outcome = decide({a, b}, facts);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.rank == 1);
  CHECK(outcome.headline ==
        "rank 1 (host n0 pid 11) killed by SIGKILL after 1.0 s; the others went on and ended well");
  CHECK(outcome.followers == "before that also failed: rank 2 exited with code 9");
  a.ends[1].ended_ns += kSecondNs;  // with the last good one: nobody went on without it
  CHECK(decide({a, b}, facts).exit_code == 128 + SIGKILL);
}

TEST_CASE("without a record the first node that saw a failure of its own counts") {
  NodeEnds a = node_of(0, SIGTERM, SIGTERM);
  NodeEnds b = node_of(1, exited(4), SIGTERM);
  add_candidate(&b, 0);
  CHECK(decide({a, b}, two_nodes()).rank == 2);
}

TEST_CASE("restarts are counted, and none follows a stop") {
  NodeEnds a = node_of(0, exited(3), SIGTERM);
  add_candidate(&a, 0);
  OutcomeFacts facts;
  facts.max_restarts = 2;
  facts.attempt = 1;
  const Outcome again = decide({a}, facts);
  CHECK(again.restart);
  CHECK(again.headline ==
        "dt run: restart 2 of 2 after rank 0 (host n0 pid 10) exited with code 3 after 1.0 s");
  facts.attempt = 2;
  CHECK_FALSE(decide({a}, facts).restart);
  facts.attempt = 0;
  a.stop_signal = SIGINT;
  const Outcome stopped = decide({a}, facts);
  CHECK_FALSE(stopped.restart);
  CHECK(stopped.exit_code == 3);  // it had failed before
}

TEST_CASE("a stop is told from the node that it came to") {
  NodeEnds a = node_of(0, SIGINT, SIGINT);
  NodeEnds b = node_of(1, SIGINT, 0);
  a.stop_signal = b.stop_signal = SIGINT;
  a.died_of_it = b.died_of_it = true;
  b.stopped_here = true;
  const Outcome outcome = decide({a, b}, two_nodes());
  CHECK(outcome.exit_code == 128 + SIGINT);
  CHECK(outcome.headline ==
        "dt run: stopped by SIGINT on node 1 (host n1): ranks 0-2 killed by SIGINT");
  a.ends.clear();
  a.died_of_it = true;
  a.stopped_here = true;
  CHECK(decide({a}, {}).headline == "dt run: stopped by SIGINT, before a rank was started");
}

TEST_CASE("what fails on another node because of a stop is no failure") {
  NodeEnds a = node_of(0, SIGTERM, SIGTERM);
  a.stop_signal = SIGTERM;
  a.died_of_it = a.stopped_here = true;
  NodeEnds b = node_of(1, exited(9), exited(9));
  add_candidate(&b, 0);
  OutcomeFacts facts = two_nodes();
  facts.stopped_first = true;
  CHECK(decide({a, b}, facts).headline ==
        "dt run: stopped by SIGTERM on node 0 (host n0): ranks 0-1 killed by SIGTERM; ranks 2-3 "
        "exited with code 9");
  facts.stopped_first = false;  // then it had failed before
  facts.first_recorded = 2;
  CHECK(decide({a, b}, facts).exit_code == 9);
}

TEST_CASE("a lost node outweighs what its end caused, and cannot be restarted") {
  NodeEnds a = node_of(0, exited(1), SIGTERM);
  add_candidate(&a, 0);
  OutcomeFacts facts = two_nodes();
  facts.max_restarts = 5;
  facts.lost_node = "node 1 is gone";
  const Outcome outcome = decide({a}, facts);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.headline == "node 1 is gone");
  CHECK_FALSE(outcome.restart);
  CHECK(outcome.followers ==
        "2 ranks ended because of it: rank 0 exited with code 1; rank 1 killed by SIGTERM");
}

TEST_CASE("a rank that could not be started is the cause") {
  NodeEnds a = node_of(0, SIGTERM, SIGTERM);
  NodeEnds b;
  b.node = 1;
  b.host = "n1";
  b.first_rank = 2;
  b.start_error = "rank 2: cannot run x";
  CHECK(decide({a, b}, two_nodes()).headline == "dt run: node 1 (host n1): rank 2: cannot run x");
  CHECK(decide({b}, {}).headline == "dt run: rank 2: cannot run x");
  CHECK(decide({b}, {}).exit_code == 1);
  b.start_code = 127;
  CHECK(decide({b}, {}).exit_code == 127);
}

TEST_CASE("what an agent tells arrives as it was, and nonsense is refused") {
  NodeEnds ends = node_of(1, SIGKILL, exited(2));
  add_candidate(&ends, 1, true);
  ends.start_error = "none";
  ends.failed_after_stop = ends.died_of_it = ends.stopped_here = true;
  ends.stop_signal = SIGTERM;
  ends.oom_text = "oom";
  const std::string bytes = encode(ends);
  NodeEnds back;
  REQUIRE(decode(bytes, &back));
  CHECK(encode(back) == bytes);
  CHECK(back.ends[0].pid == 110);
  CHECK(back.ends[0].ended_ns == 1 + kSecondNs);
  CHECK(back.ends[1].wait_status == exited(2));
  CHECK(back.candidates[0].tail == Strings{"last words of 1"});
  for (size_t size = 0; size < bytes.size(); ++size) {
    NodeEnds cut;
    CHECK_FALSE(decode(bytes.substr(0, size), &cut));
  }
  ends.candidates[0].index = 2;  // there is no such rank
  CHECK_FALSE(decode(encode(ends), &back));

  Outcome outcome;
  outcome.exit_code = 9;
  outcome.restart = true;
  outcome.headline = "why";
  outcome.rank = 4;
  outcome.tail = {"a", "", "b"};
  outcome.followers = "who";
  Outcome told;
  REQUIRE(decode(encode(outcome), &told));
  CHECK(encode(told) == encode(outcome));
  CHECK(told.tail == outcome.tail);
  CHECK_FALSE(decode(encode(outcome) + "x", &told));
}

TEST_CASE("a node's report with numbers that no node has is none, and costs its reader nothing") {
  const auto refused = [](const auto& change) {
    NodeEnds ends = node_of(1, exited(1), 0);
    add_candidate(&ends, 0);
    NodeEnds back;
    REQUIRE(decode(encode(ends), &back));
    change(&ends);
    return !decode(encode(ends), &back);
  };
  // Of a rank behind 2^31 others, node 0 would make a list of 64 GiB.
  CHECK(refused([](NodeEnds* ends) { ends->first_rank = INT32_MAX - 2; }));
  CHECK(refused([](NodeEnds* ends) { ends->first_rank = dt::kMaxWorldSize - 1; }));
  CHECK_FALSE(refused([](NodeEnds* ends) { ends->first_rank = dt::kMaxWorldSize - 2; }));
  CHECK(refused([](NodeEnds* ends) { ends->first_rank = -1; }));
  CHECK(refused([](NodeEnds* ends) { ends->first = 2; }));
  CHECK(refused([](NodeEnds* ends) { ends->stop_signal = INT32_MAX; }));
  CHECK(refused([](NodeEnds* ends) { ends->stop_signal = -1; }));
  CHECK(refused([](NodeEnds* ends) { ends->start_code = 256; }));
  CHECK(refused([](NodeEnds* ends) { ends->ends[0].started_ns = INT64_MIN; }));
  CHECK(refused([](NodeEnds* ends) { ends->ends[1].ended_ns = -1; }));

  Outcome outcome;
  Outcome told;
  outcome.exit_code = 256;
  CHECK_FALSE(decode(encode(outcome), &told));
  outcome.exit_code = 255;
  CHECK(decode(encode(outcome), &told));
  outcome.rank = -2;
  CHECK_FALSE(decode(encode(outcome), &told));
}

TEST_CASE("addresses and words of other agents are read only where they make sense") {
  using dt::cli::Endpoints;
  using dt::cli::parse_word;
  const Endpoints good{3, "job", "h0", 65535, "h1", 29500};
  Endpoints back;
  REQUIRE(decode(encode(good), &back));
  CHECK(encode(back) == encode(good));
  CHECK(back.master_host == "h1");
  for (const int port : {-1, 65536}) {
    Endpoints bad = good;
    bad.store_port = port;
    CHECK_FALSE(decode(encode(bad), &back));
    bad = good;
    bad.master_port = port;
    CHECK_FALSE(decode(encode(bad), &back));
  }
  Endpoints early = good;
  early.attempt = -1;
  CHECK_FALSE(decode(encode(early), &back));

  CHECK(parse_word("end/7")->failed_attempt == 7);
  CHECK(parse_word("heed/0")->heeding_attempt == 0);
  CHECK(parse_word("stop/15/2")->signal == 15);
  CHECK(parse_word("stop/15/2")->count == 2);
  CHECK(parse_word("silent/3/12")->silent_attempt == 3);
  CHECK(parse_word("silent/3/12")->silent_rank == 12);
  CHECK(parse_word("server/4")->server_attempt == 4);
  CHECK(parse_word("gone/4")->gone_attempt == 4);
  CHECK(parse_word("ended/3/1")->ended_attempt == 3);
  CHECK(parse_word("ended/3/1")->ended_node == 1);
  for (const char* text :
       {"",           "server/",          "server/-1",   "gone/",       "gone/-1",  "ended/1",
        "ended/1/-1", "ended/-1/1",       "end",         "end/",        "end/-1",   "end/x",
        "heed/-1",    "heed/99999999999", "stop/",       "stop/15",     "stop/15/", "stop/0/1",
        "stop/65/1",  "stop/15/0",        "stop//1",     "stop/15/1/1", "halt/1",   "end/1 ",
        "silent/1",   "silent/-1/2",      "silent/1/-2", "silent/1/2/3"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_word(text).has_value());
  }
}

TEST_CASE("the last lines of all nodes fit into one answer, empty ones too") {
  CHECK(tails_room(1) == 4 << 20);
  CHECK(tails_room(0) == 4 << 20);
  CHECK(tails_room(1024) == 4096);
  size_t room = 20;
  CHECK(lines_that_fit({"12345678", "", "", "x"}, &room) == Strings{"12345678", "", ""});
  CHECK(room == 0);
  CHECK(lines_that_fit({""}, &room).empty());
  room = 8;
  CHECK(lines_that_fit({"12345", "x"}, &room).empty());  // no line after one that is left out
  CHECK(room == 8);
}
