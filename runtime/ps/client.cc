// SPDX-License-Identifier: Apache-2.0
#include "ps/client.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ps/client_core.h"

namespace dt::ps {
namespace {

using Requests = std::vector<std::vector<std::shared_ptr<Request>>>;

/// Puts requests for rows together, for each server by itself.
class RowRequests {
 public:
  RowRequests(What what, uint64_t number, const Variable& variable, size_t servers, double rate)
      : what_(what),
        number_(number),
        row_bytes_(variable.row_bytes()),
        rate_(rate),
        open_(servers),
        done_(servers) {}

  /// `count` rows of one server from `place` on; a request is of one range, or of places.
  /// @param values of them; null: of a pull, where they go to `target` and the rows behind it
  void add_range(size_t server, int64_t place, int64_t count, const float* values, int64_t target) {
    Part& part = open_[server];
    if (part.rows == 0) part.first = place;
    add(server, count, values, target);
  }
  void add_row(size_t server, int64_t place, const float* values, int64_t target) {
    open_[server].places.push_back(place);
    add(server, 1, values, target);
  }
  /// The values of the row that this server was given last.
  float* last_row(size_t server) {
    std::string& values = open_[server].values;
    return reinterpret_cast<float*>(values.data() + values.size() -
                                    static_cast<size_t>(row_bytes_));
  }
  /// Before a row that last_row() may be asked for: ends a part that is full.
  void make_room(size_t server) {
    if (open_[server].rows * row_bytes_ >= kPartBytes) flush(server);
  }
  Requests take(const std::shared_ptr<Call>& call) {
    for (size_t server = 0; server < open_.size(); ++server) flush(server);
    for (const auto& all : done_) {
      for (const auto& request : all) request->call = call;
      call->open += all.size();
    }
    return std::move(done_);
  }

 private:
  struct Part {
    int64_t first = -1;
    std::vector<int64_t> places;
    std::string values;
    std::vector<Run> targets;
    int64_t rows = 0;
  };

  void add(size_t server, int64_t count, const float* values, int64_t target) {
    Part& part = open_[server];
    part.rows += count;
    if (values != nullptr) {
      part.values.append(reinterpret_cast<const char*>(values),
                         static_cast<size_t>(count * row_bytes_));
    } else if (!part.targets.empty() &&
               part.targets.back().row + part.targets.back().count == target) {
      part.targets.back().count += count;
    } else {
      part.targets.push_back({target, count});
    }
  }

  void flush(size_t server) {
    Part part = std::exchange(open_[server], {});
    if (part.rows == 0) return;
    auto request = std::make_shared<Request>();
    request->what = what_;
    request->signature = number_;
    request->count = part.rows;
    const RowsHead head{part.first, rate_};
    const size_t places = part.places.size() * sizeof(int64_t);
    request->payload.reserve(sizeof head + places + part.values.size());
    request->payload.append(reinterpret_cast<const char*>(&head), sizeof head);
    request->payload.append(reinterpret_cast<const char*>(part.places.data()), places);
    request->payload.append(part.values);
    if (what_ == What::kPull) request->answer_bytes = part.rows * row_bytes_;
    request->targets = std::move(part.targets);
    done_[server].push_back(std::move(request));
  }

  const What what_;
  const uint64_t number_;
  const int64_t row_bytes_;
  const double rate_;
  std::vector<Part> open_;  // by server
  Requests done_;
};

/// All rows of a variable, stripe by stripe.
void add_all_rows(const Variable& variable, const Partition& partition, const float* values,
                  RowRequests* requests) {
  for (int64_t row = 0; row < variable.rows; row += partition.stripe()) {
    const auto server = static_cast<size_t>(partition.server_of(row));
    requests->make_room(server);
    requests->add_range(server, partition.place_of(row),
                        std::min(partition.stripe(), variable.rows - row),
                        values == nullptr ? nullptr : values + row * variable.columns, row);
  }
}

/// Rows in ascending order, each once: equal ones are added up, or of a set the last one stays.
void add_changed_rows(const Variable& variable, const Partition& partition, const int64_t* rows,
                      int64_t count, const float* values, bool sets, RowRequests* requests) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  const auto before = [rows](int64_t a, int64_t b) {
    return rows[a] != rows[b] ? rows[a] < rows[b] : a < b;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::sort(order.begin(), order.end(), before);
  }
  int64_t last = -1;
  for (const int64_t i : order) {
    const float* const from = values + i * variable.columns;
    const auto server = static_cast<size_t>(partition.server_of(rows[i]));
    if (rows[i] != last) {
      requests->make_room(server);
      requests->add_row(server, partition.place_of(rows[i]), from, 0);
    } else {
      float* const to = requests->last_row(server);
      for (int32_t c = 0; c < variable.columns; ++c) to[c] = sets ? from[c] : to[c] + from[c];
    }
    last = rows[i];
  }
}

/// False: the deadline came first.
bool wait_for(backend::Work& work, const Wait& wait) {
  Doorbell bell;
  work.watch(&bell);
  if (wait.interrupt != nullptr) const_cast<Interrupt*>(wait.interrupt)->attach(&bell);
  for (;;) {
    const uint32_t ticket = bell.prepare();
    if (work.done() || wait.interrupted() || wait.deadline.passed()) {
      bell.cancel();
      break;
    }
    bell.sleep(ticket, wait.deadline);
  }
  if (wait.interrupt != nullptr) const_cast<Interrupt*>(wait.interrupt)->detach(&bell);
  work.unwatch(&bell);
  return work.done();
}

}  // namespace

Client::Client(Options options) : options_(std::move(options)), room_(std::make_shared<Room>()) {}

Result<std::unique_ptr<Client>> Client::connect(Options options, const Wait& wait) {
  std::unique_ptr<Client> client(new Client(std::move(options)));
  DT_TRY_VALUE(client->loop_, net::Loop::start("dt-ps-client"));
  Status begun;
  client->loop_->run([&] {
    client->core_ =
        std::make_unique<ClientCore>(client->options_, client->room_, client->loop_.get());
    begun = client->core_->begin();
  });
  DT_TRY(begun);
  if (!client->core_->ready.wait(wait)) {
    std::string missing;
    client->loop_->run([&] { missing = client->core_->missing(); });
    return Status(
        Code::kTimeout,
        format("not all of %zu parameter servers came within %lld ms: %s; start them, and "
               "give all processes the same list of servers and the same token",
               client->servers(), static_cast<long long>(wait.deadline.limit_ms()),
               missing.c_str()));
  }
  DT_TRY(client->core_->ready_status);
  if (client->options_.worker < 0) return client;
  int64_t clock = 0;
  client->loop_->run([&] { clock = client->core_->clock(); });
  client->state_.with([&](State& state) { state.clock = clock; });
  // Servers may have begun with other ones.
  DT_TRY(client->ask_all("clock", static_cast<uint32_t>(What::kClock), kAnyAhead, clock, {}, wait));
  return client;
}

Client::~Client() {
  if (loop_ == nullptr) return;
  loop_->run([this] { core_ = nullptr; });
}

Status Client::ask_all(const std::string& what, uint32_t kind, uint64_t signature, int64_t count,
                       const std::string& payload, const Wait& wait) {
  auto call = std::make_shared<Call>();
  call->what = what;
  call->work = std::make_shared<backend::Work>();
  call->deadline = wait.deadline;
  call->open = servers();
  loop_->post([this, call, kind, signature, count, payload] {
    if (static_cast<What>(kind) == What::kClock) core_->set_clock(count);
    for (size_t server = 0; server < servers(); ++server) {
      auto request = std::make_shared<Request>();
      request->call = call;
      request->what = static_cast<What>(kind);
      request->signature = signature;
      request->count = count;
      request->payload = payload;
      room_->bytes += static_cast<int64_t>(payload.size());
      core_->ask(server, std::move(request));
    }
  });
  // The loop ends it at the deadline, and then knows why.
  if (!wait_for(*call->work, Wait{wait.deadline.plus_ms(60'000), wait.interrupt})) {
    return wait.interrupted() ? wait.interrupt->status()
                              : Status(Code::kInternal, what + ": its thread does not answer");
  }
  DT_TRY(call->work->status());
  if (static_cast<What>(kind) == What::kClock && signature != kAnyAhead) {
    room_->statistics.with([&](Statistics& all) {
      all.most_ahead = std::max(all.most_ahead, count - call->lowest_clock);
    });
  }
  return {};
}

Status Client::check_here() const {
  if (!state_.with([](const State& state) { return state.left; })) return {};
  return Status(Code::kInvalidState, "this worker has left the parameter servers");
}

void Client::abort() {
  loop_->post([core = core_.get()] { core->close(); });
}

Result<int32_t> Client::open(const Variable& variable, const Wait& wait) {
  DT_TRY(check_here());
  DT_TRY(check(variable));
  ByteWriter out;
  put(out, variable);
  const std::string encoded = out.take();
  const auto known = state_.with([&](State& state) {
    for (size_t i = 0; i < state.variables.size(); ++i) {
      if (state.variables[i].name == variable.name) return static_cast<int32_t>(i);
    }
    return -1;
  });
  if (known >= 0) {
    DT_TRY_VALUE(const Variable mine, this->variable(known));
    const std::string differs = difference(mine, variable);
    if (differs.empty()) return known;
    return Status(Code::kMismatch,
                  format("variable \"%s\" is known already: %s; give the same, or another name",
                         variable.name.c_str(), differs.c_str()));
  }
  // A number is taken before the servers know it; one that they refuse stays without a use.
  const int32_t number = state_.with([&](State& state) {
    state.variables.emplace_back();
    return static_cast<int32_t>(state.variables.size()) - 1;
  });
  DT_TRY(ask_all("variable \"" + variable.name + "\"", static_cast<uint32_t>(What::kOpen),
                 static_cast<uint64_t>(number), 0, encode(OpenRequest{false, encoded}), wait));
  loop_->run([&] {
    for (size_t server = 0; server < servers(); ++server) {
      core_->server(server).know(static_cast<uint64_t>(number), encoded);
    }
  });
  state_.with([&](State& state) { state.variables[static_cast<size_t>(number)] = variable; });
  return number;
}

Result<Variable> Client::variable(int32_t number) const {
  return state_.with([&](const State& state) -> Result<Variable> {
    const auto count = static_cast<int32_t>(state.variables.size());
    if (number >= 0 && number < count) {
      const Variable& found = state.variables[static_cast<size_t>(number)];
      if (!found.name.empty()) return found;
    }
    return Status(Code::kInvalidArgument,
                  format("variable is %d, which is none of this worker's", number));
  });
}

Result<Variable> Client::begin(int32_t number, const int64_t* rows, int64_t count) const {
  DT_TRY_VALUE(Variable variable, this->variable(number));
  DT_TRY(check_here());
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] >= 0 && rows[i] < variable.rows) continue;
    return Status(Code::kInvalidArgument,
                  format("rows[%lld] is %lld; variable \"%s\" has %lld rows",
                         static_cast<long long>(i), static_cast<long long>(rows[i]),
                         variable.name.c_str(), static_cast<long long>(variable.rows)));
  }
  return variable;
}

Status Client::issue(std::shared_ptr<Call> call, Requests parts) {
  int64_t bytes = 0;
  for (const auto& all : parts) {
    for (const auto& request : all) {
      bytes += static_cast<int64_t>(request->payload.size()) + request->answer_bytes;
    }
  }
  if (call->open == 0) {
    call->work->complete({});
    return {};
  }
  const uint64_t place = room_->queue.with([](Room::Queue& queue) {
    queue.waiting.insert(++queue.last);
    return queue.last;
  });
  for (;;) {
    const uint32_t ticket = room_->bell.prepare();
    const bool late = call->deadline.passed();
    int64_t taken = 0;
    bool others_wait = false;
    const bool enters = room_->queue.with([&](Room::Queue& queue) {
      taken = room_->bytes.load();
      const bool fits = taken <= 0 || taken + bytes <= options_.most_bytes;
      const bool next = *queue.waiting.begin() == place;
      if (next && fits) room_->bytes += bytes;
      if ((next && fits) || late) queue.waiting.erase(place);
      others_wait = !queue.waiting.empty();
      return next && fits;
    });
    if (!enters && !late) {
      room_->bell.sleep(ticket, call->deadline);
      continue;
    }
    room_->bell.cancel();
    if (others_wait) room_->bell.ring();  // another one is next
    if (enters) break;
    std::string missing;
    loop_->run([&] { missing = core_->missing(); });
    return Status(
        Code::kTimeout,
        format("%s: no room for its %lld bytes within %lld ms: calls of %lld bytes are "
               "under way, and others may wait in front of it; give it more time, or "
               "raise queue_bytes (%lld); parameter servers: %s",
               call->what.c_str(), static_cast<long long>(bytes),
               static_cast<long long>(call->deadline.limit_ms()), static_cast<long long>(taken),
               static_cast<long long>(options_.most_bytes), missing.c_str()));
  }
  loop_->post([this, parts = std::move(parts)]() mutable {
    for (size_t server = 0; server < parts.size(); ++server) {
      for (auto& request : parts[server]) core_->ask(server, std::move(request));
    }
  });
  return {};
}

Status Client::change(bool sets, int32_t number, const int64_t* rows, int64_t count,
                      const float* values, double rate,
                      const std::shared_ptr<backend::Work>& work) {
  DT_TRY_VALUE(const Variable variable, begin(number, rows, count));
  if (options_.worker < 0) {
    return Status(Code::kUnsupported, "an evaluator only reads; push from a worker");
  }
  const Partition partition(variable, static_cast<int32_t>(servers()));
  RowRequests requests(sets ? What::kSet : What::kPush, static_cast<uint64_t>(number), variable,
                       servers(), rate);
  if (count < 0) {
    add_all_rows(variable, partition, values, &requests);
  } else {
    add_changed_rows(variable, partition, rows, count, values, sets, &requests);
  }
  auto call = std::make_shared<Call>();
  call->what = format("%s to variable \"%s\"", sets ? "set" : "push", variable.name.c_str());
  call->work = work;
  call->deadline = Deadline::after_ms(options_.timeout_ms);
  auto parts = requests.take(call);
  DT_TRY(issue(std::move(call), std::move(parts)));
  room_->statistics.with([&](Statistics& all) {
    ++all.pushes;
    all.pushed_rows += count < 0 ? variable.rows : count;
  });
  return {};
}

Status Client::push(int32_t number, const int64_t* rows, int64_t count, const float* gradients,
                    double rate, const std::shared_ptr<backend::Work>& work) {
  return change(false, number, rows, count, gradients, rate, work);
}

Status Client::set(int32_t number, const int64_t* rows, int64_t count, const float* values,
                   const std::shared_ptr<backend::Work>& work) {
  return change(true, number, rows, count, values, -1, work);
}

Status Client::pull(int32_t number, const int64_t* rows, int64_t count, float* values,
                    const std::shared_ptr<backend::Work>& work) {
  DT_TRY_VALUE(const Variable variable, begin(number, rows, count));
  const Partition partition(variable, static_cast<int32_t>(servers()));
  RowRequests requests(What::kPull, static_cast<uint64_t>(number), variable, servers(), -1);
  if (count < 0) {
    add_all_rows(variable, partition, nullptr, &requests);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const auto server = static_cast<size_t>(partition.server_of(rows[i]));
      requests.make_room(server);
      requests.add_row(server, partition.place_of(rows[i]), nullptr, i);
    }
  }
  auto call = std::make_shared<Call>();
  call->what = "pull of variable \"" + variable.name + "\"";
  call->work = work;
  call->values = values;
  call->columns = variable.columns;
  call->deadline = Deadline::after_ms(options_.timeout_ms);
  auto parts = requests.take(call);
  DT_TRY(issue(std::move(call), std::move(parts)));
  room_->statistics.with([&](Statistics& all) {
    ++all.pulls;
    all.pulled_rows += count < 0 ? variable.rows : count;
  });
  return {};
}

Status Client::clock(int64_t ahead, const Wait& wait) {
  DT_TRY(check_here());
  if (options_.worker < 0) {
    return Status(Code::kUnsupported, "an evaluator has no clock; call it in a worker");
  }
  const int64_t now = state_.with([](const State& state) { return state.clock + 1; });
  DT_TRY(ask_all("clock", static_cast<uint32_t>(What::kClock),
                 ahead < 0 ? kAnyAhead : static_cast<uint64_t>(ahead), now, {}, wait));
  state_.with([&](State& state) { state.clock = now; });
  room_->statistics.with([&](Statistics& all) { all.clock = now; });
  return {};
}

Status Client::save(const Wait& wait) {
  DT_TRY(check_here());
  return ask_all("save", static_cast<uint32_t>(What::kSave), 0, 0, {}, wait);
}

Status Client::leave(const Wait& wait) {
  const std::lock_guard one_at_a_time(leaving_);
  if (goodbye_answered_) return {};
  state_.with([](State& state) { state.left = true; });
  // After all that was issued: a server answers that first.
  DT_TRY(ask_all("leave", static_cast<uint32_t>(What::kGoodbye), 0, 0, {}, wait));
  goodbye_answered_ = true;
  abort();
  return {};
}

Client::Statistics Client::statistics() const {
  return room_->statistics.with([](const Statistics& all) { return all; });
}

}  // namespace dt::ps
