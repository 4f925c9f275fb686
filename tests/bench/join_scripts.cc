// SPDX-License-Identifier: Apache-2.0
#include "join_scripts.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "server.h"
#include "store/protocol.h"
#include "store/torch_protocol.h"

namespace dt::load {

using namespace dt::store;

JoinRecord record_of(int rank, int ranks) {
  JoinRecord record;
  record.rank = rank;
  record.world_size = ranks;
  const int host = rank / 8;
  record.host_id =
      "4b1f0c52-7a3d-4d9e-9c55-0a1b2c3d4e5f node" + std::to_string(host) + " 4026531840";
  record.host_name = "node" + std::to_string(host);
  record.pid = 1000 + rank;
  record.socket_name = std::string("\0dt-1a2b3c4d5e6f7081-", 20) + std::to_string(rank);
  record.equal_config = {{"host.inline_bytes", "8192"}, {"host.slot_bytes", "65536"},
                         {"backend.name", "auto"},      {"reducer.bucket_cap_bytes", "26214400"},
                         {"reducer.rebuild", "true"},   {"reducer.first_bucket_bytes", "1048576"}};
  const std::string address = format("10.%d.%d.1", 1 + host / 250, host % 250);
  record.reach.network_id = record.host_id;
  record.reach.address = address;
  record.reach.port = static_cast<uint16_t>(29600 + rank % 8);
  record.reach.interfaces = {"lo 127.0.0.1/8", "eth0 " + address + "/8", "docker0 172.17.0.1/16"};
  return record;
}

namespace {

constexpr int kGetsAtATime = 64;  // that one rank of PyTorch sends in one piece

std::string hello_of(int rank, int ranks) {
  Request request;
  request.type = FrameType::kHello;
  request.hello.protocol = kProtocolVersion;
  request.hello.job_id = "load";
  request.hello.attempt = 0;
  request.hello.member = {rank, "node" + std::to_string(rank / 8), 1000 + rank};
  request.hello.world_size = ranks;
  request.hello.nonce = static_cast<uint64_t>(rank) + 1;
  request.hello.dialled = "10.0.0.5:29400";
  return encode_frame(request.type, 1, encode_request(request));
}
std::string join_of(int rank, int ranks) {
  Request request;
  request.type = FrameType::kJoin;
  request.join = record_of(rank, ranks);
  request.timeout_ms = kRoundLimitMs;
  return encode_frame(request.type, 2, encode_request(request));
}

/// Of a guard: what is left for the script is in *data. True: the sides know each other.
bool pass_guard(Rank* rank, const char** data, size_t* bytes) {
  while (rank->guard != nullptr && *bytes > 0) {
    const size_t piece = std::min(*bytes, rank->guard->wanted());
    rank->guard->feed(*data, piece);
    *data += piece;
    *bytes -= piece;
    if (!rank->guard->failure().ok()) fail(rank->guard->failure().message());
    rank->out += rank->guard->take_output();
    if (!rank->guard->established()) continue;
    rank->guard = nullptr;
    return true;
  }
  return false;
}

/// The ranks of a host say at once what they say.
class RelayScript final : public Script {
 public:
  RelayScript(int ranks, net::Security security) : ranks_(ranks), security_(std::move(security)) {}
  void connected(Rank* relay) override {
    if (security_.mode == net::SecurityMode::kNone) return begin(relay);
    relay->guard =
        std::make_unique<net::Guard>(security_, net::Purpose::kStore, net::Side::kClient);
    relay->out = relay->guard->take_output();
  }
  void heard(Rank* relay, const char* data, size_t bytes) override {
    if (pass_guard(relay, &data, &bytes)) begin(relay);
    if (bytes == 0) return;
    relay->uplink.feed(data, bytes);
    Frame frame;
    while (relay->uplink.next(&frame)) {
      if (frame.type == FrameType::kReply) continue;  // to kUplink
      // The server sends each answer in a piece of its own: this is its header.
      if (frame.type != FrameType::kData || frame.payload.size() < kHeaderBytes ||
          frame.payload[5] != static_cast<char>(FrameType::kReply)) {
        fail("dt refused a rank of a relay");
      }
      answered(relay);
    }
    if (!relay->uplink.status().ok()) fail(relay->uplink.status().message());
  }

 private:
  void begin(Rank* relay) {
    UplinkHello hello;
    hello.job_id = "load";
    hello.host = "node" + std::to_string(relay->index);
    relay->out += encode_frame(FrameType::kUplink, 1, encode(hello));
    for (int i = 0; i < kRelayedRanks; ++i) {
      relay->out += encode_frame(FrameType::kOpen, channel_of(i), {});
      say(relay, i, hello_of(relay->index * kRelayedRanks + i, ranks_));
    }
  }
  static uint64_t channel_of(int i) { return static_cast<uint64_t>(i) + 1; }
  static void say(Rank* relay, int i, const std::string& bytes) {
    relay->out += encode_frame(FrameType::kData, channel_of(i), bytes);
  }
  void answered(Rank* relay) {
    if (++relay->stage == kRelayedRanks) {
      for (int i = 0; i < kRelayedRanks; ++i) {
        say(relay, i, join_of(relay->index * kRelayedRanks + i, ranks_));
      }
    }
    if (relay->stage == 2 * kRelayedRanks) relay->done = true;
  }

  const int ranks_;
  const net::Security security_;
};

class DtScript final : public Script {
 public:
  DtScript(int ranks, bool reads, net::Security security)
      : reads_(reads), security_(std::move(security)) {
    for (int i = 0; i < ranks; ++i) {
      hellos_.push_back(hello_of(i, ranks));
      joins_.push_back(join_of(i, ranks));
    }
    if (!reads) return;
    Request request;
    request.type = FrameType::kMultiGet;
    for (int i = 0; i < ranks; ++i) request.keys.push_back(join_record_key(i));
    read_all_ = encode_frame(request.type, 3, encode_request(request));
    size_t records = sizeof(uint32_t);
    for (int i = 0; i < ranks; ++i) records += 5 + encode(record_of(i, ranks)).size();
    answer_bytes_ = records;
  }
  void connected(Rank* rank) override {
    if (security_.mode == net::SecurityMode::kNone) return say_hello(rank);
    rank->guard = std::make_unique<net::Guard>(security_, net::Purpose::kStore, net::Side::kClient);
    rank->out = rank->guard->take_output();
  }
  void say_hello(Rank* rank) { rank->out += hellos_[static_cast<size_t>(rank->index)]; }
  void heard(Rank* rank, const char* data, size_t bytes) override {
    if (pass_guard(rank, &data, &bytes)) say_hello(rank);
    while (bytes > 0) {
      if (rank->skip == 0) {
        const size_t piece = std::min(bytes, kHeaderBytes - rank->partial.size());
        rank->partial.append(data, piece);
        data += piece;
        bytes -= piece;
        if (rank->partial.size() < kHeaderBytes) return;
        uint32_t payload = 0;
        memcpy(&payload, rank->partial.data() + 8, sizeof payload);
        if (rank->partial[5] != static_cast<char>(FrameType::kReply)) fail("dt refused a rank");
        if (rank->stage == 2 && payload != answer_bytes_) fail("dt answered other records");
        rank->partial.clear();
        rank->skip = payload;
      }
      const size_t piece = std::min(bytes, rank->skip);
      rank->skip -= piece;
      data += piece;
      bytes -= piece;
      if (rank->skip == 0) answered(rank);
    }
  }

 private:
  void answered(Rank* rank) {
    if (++rank->stage == 1) {
      rank->out = joins_[static_cast<size_t>(rank->index)];
    } else if (rank->stage == 2 && reads_) {
      rank->out = read_all_;
    } else {
      rank->done = true;
    }
  }

  const bool reads_;
  const net::Security security_;
  std::vector<std::string> hellos_;
  std::vector<std::string> joins_;
  std::string read_all_;
  size_t answer_bytes_ = 0;
};

class LeastScript final : public Script {
 public:
  LeastScript(int question_bytes, int answer_bytes)
      : question_(static_cast<size_t>(question_bytes), 'q'),
        answer_bytes_(static_cast<size_t>(answer_bytes)) {}
  void connected(Rank* rank) override { rank->out = question_; }
  void heard(Rank* rank, const char* /*data*/, size_t bytes) override {
    rank->skip += bytes;
    rank->done = rank->skip == answer_bytes_;
  }
  bool greets() const override { return false; }

 private:
  const std::string question_;
  const size_t answer_bytes_;
};

class TorchScript final : public Script {
 public:
  TorchScript(int ranks, bool as_client, Reading reading)
      : ranks_(ranks), as_client_(as_client), reading_(reading) {
    for (int i = 0; i < ranks; ++i) {
      records_.push_back(encode(record_of(i, ranks)));
      gets_.push_back(encode_torch({TorchOp::kGet, {key_of(i)}}, TorchDialect::kOld));
      waits_.push_back(encode_torch({TorchOp::kWait, {key_of(i)}}, TorchDialect::kOld));
    }
  }
  void connected(Rank* rank) override {
    if (as_client_) {
      rank->out = encode_torch({TorchOp::kAdd, {"init/"}, 1}, TorchDialect::kOld);
    } else {
      arrive(rank);
    }
  }
  bool wants_second(const Rank& rank) const override {
    return as_client_ && rank.stage == kCounted && rank.second_fd < 0;
  }
  void second_open(Rank* rank) override { arrive(rank); }
  void drained(Rank* rank) override {
    if (rank->stage != kReading || reading_ != Reading::kPipelined || rank->next == ranks_) return;
    const int end = std::min(ranks_, rank->next + kGetsAtATime);
    for (; rank->next < end; ++rank->next) rank->out += gets_[static_cast<size_t>(rank->next)];
  }
  void heard(Rank* rank, const char* data, size_t bytes) override {
    while (bytes > 0) {
      if (rank->skip > 0) {
        const size_t piece = std::min(bytes, rank->skip);
        rank->skip -= piece;
        data += piece;
        bytes -= piece;
        if (rank->skip == 0) record_read(rank);
        continue;
      }
      const bool one_byte = rank->stage == kWaiting || rank->stage == kWaitingForRecord;
      const size_t wanted = one_byte ? 1 : sizeof(uint64_t);
      const size_t piece = std::min(bytes, wanted - rank->partial.size());
      rank->partial.append(data, piece);
      data += piece;
      bytes -= piece;
      if (rank->partial.size() < wanted) return;
      uint64_t number = 0;
      memcpy(&number, rank->partial.data(), wanted);
      rank->partial.clear();
      answered(rank, number);
    }
  }

 private:
  enum Stage { kBegin, kCounted, kAdding, kWaiting, kReading, kWaitingForRecord };

  static std::string key_of(int rank) { return "/join/record/" + std::to_string(rank); }

  void arrive(Rank* rank) {
    rank->stage = kAdding;
    rank->out = encode_torch(
        {TorchOp::kSet, {key_of(rank->index), records_[static_cast<size_t>(rank->index)]}},
        TorchDialect::kOld);
    rank->out += encode_torch({TorchOp::kAdd, {"/join/count"}, 1}, TorchDialect::kOld);
  }
  void answered(Rank* rank, uint64_t number) {
    switch (rank->stage) {
      case kBegin: rank->stage = kCounted; break;
      case kAdding:
        if (number == static_cast<uint64_t>(ranks_)) {
          rank->out = encode_torch({TorchOp::kSet, {"/join/all", "1"}}, TorchDialect::kOld);
        }
        rank->out += encode_torch({TorchOp::kWait, {"/join/all"}}, TorchDialect::kOld);
        rank->stage = kWaiting;
        break;
      case kWaiting:
        if (reading_ == Reading::kNone) {
          rank->done = true;
        } else if (reading_ == Reading::kPipelined) {
          rank->stage = kReading;
          drained(rank);
        } else {
          rank->stage = kWaitingForRecord;
          rank->out = waits_[0];
        }
        break;
      case kWaitingForRecord:
        rank->stage = kReading;
        rank->out = gets_[static_cast<size_t>(rank->expected)];
        break;
      default:
        if (number != records_[static_cast<size_t>(rank->expected)].size()) {
          fail("PyTorch answered another record");
        }
        rank->skip = number;
        break;
    }
  }
  void record_read(Rank* rank) {
    if (++rank->expected == ranks_) {
      rank->done = true;
    } else if (reading_ == Reading::kAsClient) {
      rank->stage = kWaitingForRecord;
      rank->out = waits_[static_cast<size_t>(rank->expected)];
    }
  }

  const int ranks_;
  const bool as_client_;
  const Reading reading_;
  std::vector<std::string> records_;
  std::vector<std::string> gets_;
  std::vector<std::string> waits_;
};

}  // namespace

std::unique_ptr<Script> dt_script(int ranks, bool reads, net::Security security) {
  return std::make_unique<DtScript>(ranks, reads, std::move(security));
}

std::unique_ptr<Script> least_script(int question_bytes, int answer_bytes) {
  return std::make_unique<LeastScript>(question_bytes, answer_bytes);
}

std::unique_ptr<Script> relay_script(int ranks, net::Security security) {
  return std::make_unique<RelayScript>(ranks, std::move(security));
}

std::unique_ptr<Script> torch_script(int ranks, bool as_client, Reading reading) {
  return std::make_unique<TorchScript>(ranks, as_client, reading);
}

}  // namespace dt::load
