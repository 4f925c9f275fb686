// SPDX-License-Identifier: Apache-2.0
// Every collective of dt.hpp against collectives.json, whose fields make_collectives.py explains:
// on one host and with each rank on a host of its own.
#include <doctest/doctest.h>

#include <dt/dt.hpp>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "thread_ranks.h"

namespace dt_test::matrix_test {

namespace {

using nlohmann::json;
using Bytes = std::vector<uint8_t>;
using Numbers = std::vector<int64_t>;

const char* const kDtypes[] = {"i8",  "u8",  "i32",  "u32", "i64", "u64",    "f16",   "bf16",
                               "f32", "f64", "bool", "i16", "u16", "f8e4m3", "f8e5m2"};
const char* const kOps[] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor"};

template <class Enum, size_t N>
Enum place_of(const std::string& word, const char* const (&words)[N]) {
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) return static_cast<Enum>(i);
  }
  throw std::runtime_error("unknown: " + word);
}

std::vector<json> read_cases() {
  std::ifstream file(std::string(DT_TEST_VECTORS) + "/collectives.json");
  REQUIRE(file.is_open());
  return json::parse(file).at("cases");
}

Bytes bytes_of(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

/// What one rank does in one case.
class Call {
 public:
  Call(const json& one, dt::Comm& comm, bool async)
      : comm_(comm),
        async_(async),
        kind_(one.at("kind")),
        op_(place_of<dt_reduce_op>(one.at("op"), kOps)),
        root_(one.at("peer")),
        given_(one.at("calls").at(static_cast<size_t>(comm.rank()))) {
    const auto dtype = place_of<dt_dtype>(one.at("dtype"), kDtypes);
    if (given_.contains("send")) send_bytes_ = bytes_of(given_.at("send"));
    if (given_.contains("recv")) recv_bytes_ = bytes_of(given_.at("recv"));
    const int64_t size = dt_dtype_bytes(dtype);
    dt::View sent;
    if (send_bytes_) sent = {send_bytes_->data(), length(*send_bytes_) / size, dtype};
    if (recv_bytes_) recv_ = {recv_bytes_->data(), length(*recv_bytes_) / size, dtype};
    if (const auto own = numbers("own"); !own.empty()) {
      if (recv_bytes_) {
        sent = recv_.part(own[0], own[1]);
      } else {
        recv_ = sent.part(own[0], own[1]);
      }
    }
    send_ = sent;
  }

  /// Whether the result is what is wanted.
  bool run() {
    if (kind_ == "send") {
      transfer();
    } else if (async_) {
      if (!start().wait(60'000)) return false;
    } else {
      block();
    }
    if (!given_.contains("result")) return true;
    const auto* found = static_cast<const uint8_t*>(recv_.data);
    return Bytes(found, found + recv_.count * dt_dtype_bytes(recv_.dtype)) ==
           bytes_of(given_.at("result"));
  }

 private:
  static int64_t length(const Bytes& bytes) { return static_cast<int64_t>(bytes.size()); }

  Numbers numbers(const std::string& name) const {
    if (!given_.contains(name)) return {};
    std::istringstream text(given_.at(name).get<std::string>());
    return {std::istream_iterator<int64_t>(text), {}};
  }
  bool in_place() const { return given_.contains("own"); }

  void transfer() {
    const int32_t to = given_.at("to");
    const int32_t from = given_.at("from");
    if (async_) {
      const dt::Work sent = comm_.send_async(send_, to);
      comm_.recv_async(recv_, from).wait();
      sent.wait();
      return;
    }
    comm_.group([&] {
      comm_.send(send_, to);
      comm_.recv(recv_, from);
    });
  }

  void block() {
    if (kind_ == "allreduce")
      return in_place() ? comm_.allreduce(recv_, op_) : comm_.allreduce(send_, recv_, op_);
    if (kind_ == "reduce") return comm_.reduce(send_, recv_, root_, op_);
    if (kind_ == "broadcast") return comm_.broadcast(recv_, root_);
    if (kind_ == "allgather") return comm_.allgather(send_, recv_);
    if (kind_ == "reduce_scatter") return comm_.reduce_scatter(send_, recv_, op_);
    if (kind_ == "reduce_scatterv") return comm_.reduce_scatterv(send_, to_.blocks(), recv_, op_);
    if (kind_ == "alltoall") return comm_.alltoall(send_, recv_);
    if (kind_ == "alltoallv") return comm_.alltoallv(send_, to_.blocks(), recv_, from_.blocks());
    if (kind_ == "gather") return comm_.gather(send_, recv_, root_);
    if (kind_ == "gatherv") return comm_.gatherv(send_, recv_, from_.blocks(), root_);
    if (kind_ == "scatter") return comm_.scatter(send_, recv_, root_);
    if (kind_ == "scatterv") return comm_.scatterv(send_, to_.blocks(), recv_, root_);
    if (kind_ == "allgatherv") return comm_.allgatherv(send_, recv_, from_.blocks());
    if (kind_ == "barrier") return comm_.barrier();
    throw std::runtime_error("unknown kind: " + kind_);
  }

  dt::Work start() {
    if (kind_ == "allreduce") {
      return in_place() ? comm_.allreduce_async(recv_, op_)
                        : comm_.allreduce_async(send_, recv_, op_);
    }
    if (kind_ == "reduce") return comm_.reduce_async(send_, recv_, root_, op_);
    if (kind_ == "broadcast") return comm_.broadcast_async(recv_, root_);
    if (kind_ == "allgather") return comm_.allgather_async(send_, recv_);
    if (kind_ == "reduce_scatter") return comm_.reduce_scatter_async(send_, recv_, op_);
    if (kind_ == "reduce_scatterv")
      return comm_.reduce_scatterv_async(send_, to_.blocks(), recv_, op_);
    if (kind_ == "alltoall") return comm_.alltoall_async(send_, recv_);
    if (kind_ == "alltoallv")
      return comm_.alltoallv_async(send_, to_.blocks(), recv_, from_.blocks());
    if (kind_ == "gather") return comm_.gather_async(send_, recv_, root_);
    if (kind_ == "gatherv") return comm_.gatherv_async(send_, recv_, from_.blocks(), root_);
    if (kind_ == "scatter") return comm_.scatter_async(send_, recv_, root_);
    if (kind_ == "scatterv") return comm_.scatterv_async(send_, to_.blocks(), recv_, root_);
    if (kind_ == "allgatherv") return comm_.allgatherv_async(send_, recv_, from_.blocks());
    if (kind_ == "barrier") return comm_.barrier_async();
    throw std::runtime_error("unknown kind: " + kind_);
  }

  struct Table {
    Numbers counts;
    Numbers offsets;
    dt::Blocks blocks() const {
      if (counts.empty()) return {};
      return offsets.empty() ? dt::Blocks(counts) : dt::Blocks(counts, offsets);
    }
  };

  dt::Comm& comm_;
  const bool async_;
  const std::string kind_;
  const dt_reduce_op op_;
  const int32_t root_;
  const json& given_;
  const Table to_{numbers("send_counts"), numbers("send_offsets")};
  const Table from_{numbers("recv_counts"), numbers("recv_offsets")};
  std::optional<Bytes> send_bytes_;
  std::optional<Bytes> recv_bytes_;
  dt::ConstView send_;
  dt::View recv_;
};

/// All cases of this many ranks; rank r's first problem is in problems[r].
std::vector<std::string> run_all(int ranks, const std::vector<json>& cases, bool hosts) {
  std::vector<std::string> problems(static_cast<size_t>(ranks));
  const auto body = [&](const dt_test::Rank& rank) {
    dt::Comm comm(rank.world);
    std::string& problem = problems[static_cast<size_t>(rank.rank)];
    for (const bool async : {false, true}) {
      for (const json& one : cases) {
        if (one.at("ranks") != ranks || !problem.empty()) continue;
        try {
          if (!Call(one, comm, async).run()) problem = "a wrong result: " + one.dump();
        } catch (const std::exception& error) {
          problem = error.what() + std::string(": ") + one.dump();
        }
      }
    }
    (void)comm.release();  // the rank's
    return problem.empty() ? DT_OK : DT_ERR_INTERNAL;
  };
  const auto each_alone = [](int rank) {
    return dt_test::Settings{{"job.host_id", "host" + std::to_string(rank)}};
  };
  const auto outcomes = dt_test::run_ranks(
      ranks, body, {}, hosts ? each_alone : std::function<dt_test::Settings(int)>());
  for (size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) problems[r] = outcomes[r].message;
  }
  return problems;
}

TEST_CASE("every collective gives what the vectors say") {
  const std::vector<json> cases = read_cases();
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (const bool hosts : {false, true}) {
      for (const std::string& problem : run_all(ranks, cases, hosts)) {
        CAPTURE(ranks);
        CAPTURE(hosts);
        CHECK(problem == "");
      }
    }
  }
}

TEST_CASE("every kind is among the cases") {
  std::set<std::string> kinds{"recv"};
  for (const json& one : read_cases()) kinds.insert(one.at("kind"));
  CHECK(kinds.size() == DT_KIND_REDUCE_SCATTERV + 1);
}

}  // namespace

}  // namespace dt_test::matrix_test
