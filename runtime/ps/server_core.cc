// SPDX-License-Identifier: Apache-2.0
#include "ps/server_core.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace dt::ps {
namespace {

constexpr int64_t kServerTickMs = 100;
constexpr int64_t kNewcomerMs = 1000;
constexpr size_t kMostGreeting = 256;
constexpr size_t kMostSessions = 65536;
constexpr uint64_t kMostVariables = 1 << 20;
constexpr int kAcceptsInARow = 64;

std::string who(int32_t worker, const std::string& host, int64_t pid) {
  return (worker < 0 ? std::string("an evaluator") : format("worker %d", worker)) +
         format(" (%s pid %lld)", host.c_str(), static_cast<long long>(pid));
}

int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

ServerCore::~ServerCore() { close(); }

void ServerCore::close() {
  ending_ = true;
  timer_ = nullptr;
  watcher_ = nullptr;
  listener_ = {};
  saving_ = nullptr;
  for (const auto& [age, each] : greeting_) each->close();
  greeting_.clear();
  for (auto& [worker, member] : members_) member.session = nullptr;
  for (const auto& each : sessions_) each->close();
  sessions_.clear();
}

void ServerCore::stop() {
  close();
  if (!ended.is_set()) end(Status(Code::kAborted, own_text() + " was destroyed"));
}

std::string ServerCore::own_text() const {
  return format("parameter server %d (%s pid %lld)", options_.index, options_.host.c_str(),
                static_cast<long long>(options_.pid));
}

Status ServerCore::begin(tcp::Socket listener) {
  if (!options_.directory.empty()) {
    DT_TRY_VALUE(Loaded loaded, load(options_.directory, options_.index, options_.servers));
    tables_ = std::move(loaded.tables);
    known_ = std::move(loaded.workers);
  }
  begun_ns_ = monotonic_ns();
  listener_ = std::move(listener);
  DT_TRY_VALUE(watcher_, net::FdWatcher::watch_socket(loop_, listener_.fd(),
                                                      [this](bool, bool) { on_readable(); }));
  DT_TRY(watcher_->set_interest(true, false));
  timer_ = std::make_unique<net::Timer>(loop_, [this] { tick(); });
  timer_->start(kServerTickMs);
  return {};
}

void ServerCore::on_readable() {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        (void)watcher_->set_interest(false, false);  // until the next tick
      } else if (errno == EINVAL) {
        // Who owns the socket, too, has shut it: all workers have ended, those that were lost, too.
        closed_ = true;
        watcher_ = nullptr;
        look_for_end();
      }
      return;
    }
    tcp::Socket socket(fd);
    if (sessions_.size() >= kMostSessions) continue;
    if (greeting_.size() >= kMostGreeting) {
      greeting_.begin()->second->close();
      greeting_.erase(greeting_.begin());
    }
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const uint64_t age = ++last_greeting_;
    const auto over = [this, age] { greeting_.erase(age); };
    greeting_.emplace(age, tcp::Handshake::accept(
                               loop_, std::move(socket), options_.security,
                               [this](const tcp::Hello& hello) { return judge(hello); },
                               [this, over](const tcp::Hello& hello, tcp::Socket greeted) {
                                 over();
                                 (void)admit(hello.from, std::move(greeted));
                               },
                               over));
  }
}

Status ServerCore::judge(const tcp::Hello& hello) const {
  const auto refuse = [](const std::string& why) { return Status(Code::kInvalidArgument, why); };
  if (hello.session != session_of(options_.job_id) || hello.communicator != kConnectionName) {
    return refuse(
        format("%s belongs to job \"%s\", and the worker to another; set job.id "
               "(DT_JOB_ID) alike on workers and servers, or leave it out",
               own_text().c_str(), options_.job_id.c_str()));
  }
  if (hello.to != options_.index || hello.connection != options_.servers) {
    return refuse(
        format("this is parameter server %d of %d, not %d of %d; give all processes the "
               "same list of servers",
               options_.index, options_.servers, hello.to, hello.connection));
  }
  if (hello.from < -1 || (options_.workers > 0 && hello.from >= options_.workers)) {
    return refuse(format("%s has workers 0 to %d, not %d", own_text().c_str(), options_.workers - 1,
                         hello.from));
  }
  return {};
}

std::shared_ptr<Session> ServerCore::admit(int32_t worker, tcp::Socket socket) {
  const auto session = std::make_shared<Session>(this, loop_, worker);
  sessions_.insert(session);
  session->open(std::move(socket));
  return session;
}

void ServerCore::on_message(Session& session, const tcp::Header& header, std::string_view payload) {
  const auto what = static_cast<What>(header.what);
  const auto damaged = [&] { drop(session, "it sends what is no message of ours"); };
  if (session.entered == (what == What::kEnter)) return damaged();
  switch (what) {
    case What::kEnter: {
      Enter message;
      const bool good = decode(payload, &message);
      if (message.version != Enter::kVersion) {
        return session.refuse(
            0, Code::kVersion,
            format("%s speaks version %u of the protocol and this worker %u; give "
                   "both the same version of dt",
                   own_text().c_str(), Enter::kVersion, message.version));
      }
      if (!good || message.clock < kNoClock) return damaged();
      return enter(session, message);
    }
    case What::kOpen: {
      OpenRequest request;
      if (!decode(payload, &request) || header.signature > kMostVariables) return damaged();
      return open(session, header.sequence, header.signature, request);
    }
    case What::kPush:
    case What::kSet:
    case What::kPull: return use_rows(session, header, payload);
    case What::kClock: return set_clock(session, header);
    case What::kSave:
      ++session.saves;
      return save([weak = std::weak_ptr(session.shared_from_this()),
                   sequence = header.sequence](const Status& status) {
        const auto still = weak.lock();
        if (still == nullptr) return;
        --still->saves;
        if (status.ok()) {
          still->answer(What::kDone, sequence);
        } else {
          still->refuse(sequence, status.code(), status.message());
        }
        if (still->saves > 0) return;
        for (const uint64_t each : std::exchange(still->goodbyes, {})) {
          still->answer(What::kDone, each);
        }
      });
    case What::kSign: return session.answer(What::kDone, header.sequence);
    case What::kGoodbye:
      if (session.worker() >= 0) members_[session.worker()].said_goodbye = true;
      session.keeps_clock = false;
      session.clock.waits = false;
      // Its answer ends what the worker still waits for.
      if (session.saves > 0) {
        session.goodbyes.push_back(header.sequence);
      } else {
        session.answer(What::kDone, header.sequence);
      }
      return review_clocks();
    default: return damaged();
  }
}

void ServerCore::enter(Session& session, const Enter& message) {
  const bool counts = session.worker() >= 0;
  session.keeps_clock = counts && message.keeps_clock;
  Welcome welcome;
  welcome.host = options_.host;
  welcome.pid = options_.pid;
  const auto* const last = slowest();
  welcome.lowest_clock = last != nullptr ? last->second.clock : 0;
  if (counts) {
    Member& member = members_[session.worker()];
    if (member.session != nullptr) {
      if (member.nonce != message.nonce) {
        // The connection of a lost worker may still look alive.
        return session.refuse(
            0, Code::kInvalidState,
            format("%s is connected; only one process can be worker %d at a time",
                   who(session.worker(), member.host, member.pid).c_str(), session.worker()));
      }
      replace_session_of(session.worker(), member);
    }
    for (const Known& each : known_) {
      replaces_ |= each.worker == session.worker() && each.nonce == message.nonce;
    }
    if (member.nonce != message.nonce) {
      member = Member{};
      // The next checkpoint knows of it.
      if (!tables_.empty()) save_by(monotonic_ns() + kNewcomerMs * kNsPerMs);
    }
    member.nonce = message.nonce;
    member.host = message.host;
    member.pid = message.pid;
    member.said_goodbye = false;
    member.clock = message.clock != kNoClock ? message.clock : welcome.lowest_clock;
    member.session = &session;
    welcome.last_change = member.last_change;
    ++statistics_->workers;
  }
  session.entered = true;
  session.answer(What::kWelcome, 0, encode(welcome));
  review_clocks();
}

/// The worker has lost its connection before this side did. It is not away, so nothing ends.
void ServerCore::replace_session_of(int32_t worker, Member& member) {
  const auto former = std::exchange(member.session, nullptr)->shared_from_this();
  former->close();
  sessions_.erase(former);
  --statistics_->workers;
  if (options_.logger == nullptr) return;
  options_.logger->log(LogLevel::kWarning,
                       "%s: %s has connected again; its former connection broke",
                       own_text().c_str(), who(worker, member.host, member.pid).c_str());
}

Table* ServerCore::find(const std::string& name) const {
  for (const auto& table : tables_) {
    if (table->variable().name == name) return table.get();
  }
  return nullptr;
}

void ServerCore::open(Session& session, uint64_t sequence, uint64_t number,
                      const OpenRequest& request) {
  ByteReader in(request.variable);
  const Variable variable = get_variable(in);
  if (!in.complete() || !check(variable).ok()) {
    return drop(session, "it asks for a variable that cannot be");
  }
  Table* table = find(variable.name);
  const std::string named = "variable \"" + variable.name + "\"";
  if (table == nullptr && request.existed) {
    return session.refuse(
        sequence, Code::kPeerLost,
        options_.directory.empty()
            ? format("%s was started again without a checkpoint and has lost its part of %s; give "
                     "a directory for checkpoints where it is served",
                     own_text().c_str(), named.c_str())
            : format("%s was started again from a checkpoint without %s, of which its part is "
                     "lost; start the job again from what the workers have saved, or from the "
                     "checkpoints of all servers",
                     own_text().c_str(), named.c_str()));
  }
  if (table == nullptr) {
    auto made = Table::create(variable, options_.index, options_.servers);
    if (!made.ok()) {
      return session.refuse(sequence, made.status().code(),
                            own_text() + ": " + made.status().message());
    }
    tables_.push_back(std::move(made).value());
    table = tables_.back().get();
    save_by(monotonic_ns());  // until then a server that is lost cannot go on
  } else if (const std::string differs = difference(table->variable(), variable);
             !differs.empty()) {
    return session.refuse(
        sequence, Code::kMismatch,
        format("%s has %s already: %s; give the same on all workers, or another name",
               own_text().c_str(), named.c_str(), differs.c_str()));
  }
  if (session.tables.size() <= number) session.tables.resize(number + 1);
  session.tables[number] = table;
  session.answer(What::kDone, sequence);
}

void ServerCore::use_rows(Session& session, const tcp::Header& header, std::string_view payload) {
  const auto what = static_cast<What>(header.what);
  Table* const table =
      header.signature < session.tables.size() ? session.tables[header.signature] : nullptr;
  Rows rows;
  if (table == nullptr ||
      !parse_rows(what, payload, header.count, table->variable().columns, table->rows(), &rows)
           .ok()) {
    return drop(session, "it sends a request for rows that cannot be");
  }
  if (what == What::kPull) return pull(session, header.sequence, *table, rows, header.count);
  if (session.worker() < 0) {
    return session.refuse(header.sequence, Code::kUnsupported,
                          "an evaluator only reads; push from a worker");
  }
  Member& member = members_[session.worker()];
  // A worker repeats what was not answered when its connection broke.
  if (header.sequence > member.last_change) {
    member.last_change = header.sequence;
    change(*table, what, rows, header.count);
  }
  session.answer(What::kDone, header.sequence);
}

void ServerCore::change(Table& table, What what, const Rows& rows, int64_t count) {
  const int32_t columns = table.variable().columns;
  const auto at = [&](int64_t place, int64_t many, const float* values) {
    if (what == What::kSet) return table.set(place, many, values);
    table.push(place, many, values, rows.head.rate);
  };
  if (rows.places == nullptr) {
    if (count > 0) at(rows.head.first, count, rows.values);
  } else {
    for (int64_t i = 0; i < count; ++i) at(rows.places[i], 1, rows.values + i * columns);
  }
  ++statistics_->pushes;
  statistics_->pushed_rows += count;
  if (save_at_ns_ == 0) save_by(monotonic_ns() + options_.save_every_ms * kNsPerMs);
}

void ServerCore::save_by(int64_t at_ns) {
  if (options_.directory.empty() || options_.save_every_ms == 0) return;
  save_at_ns_ = save_at_ns_ == 0 ? at_ns : std::min(save_at_ns_, at_ns);
}

void ServerCore::pull(Session& session, uint64_t sequence, Table& table, const Rows& rows,
                      int64_t count) {
  const int32_t columns = table.variable().columns;
  const auto bytes = static_cast<size_t>(table.variable().row_bytes());
  std::shared_ptr<float[]> values(new float[static_cast<size_t>(count * columns)]);
  if (rows.places == nullptr) {
    if (count > 0) {
      memcpy(values.get(), table.read(rows.head.first, count), bytes * static_cast<size_t>(count));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      memcpy(values.get() + i * columns, table.read(rows.places[i], 1), bytes);
    }
  }
  ++statistics_->pulls;
  statistics_->pulled_rows += count;
  session.answer(sequence, count, std::move(values), count * static_cast<int64_t>(bytes));
}

void ServerCore::set_clock(Session& session, const tcp::Header& header) {
  if (!session.keeps_clock || header.count < 0) {
    return drop(session, "it sends a clock that it does not have");
  }
  members_[session.worker()].clock = header.count;
  session.clock = {true, header.sequence, header.signature, -1, 0};  // in place of one given up
  review_clocks();
}

const std::pair<const int32_t, ServerCore::Member>* ServerCore::slowest() const {
  const std::pair<const int32_t, Member>* found = nullptr;
  for (const auto& each : members_) {
    if (each.second.session == nullptr || !each.second.session->keeps_clock) continue;
    if (found == nullptr || each.second.clock < found->second.clock) found = &each;
  }
  return found;
}

/// To be called after all that may move the slowest clock: one moves, a worker comes or goes.
void ServerCore::review_clocks() {
  const auto* const last = slowest();
  if (last == nullptr) return;
  const int32_t slowest_worker = last->first;
  const int64_t lowest = last->second.clock;
  const Waiting waiting{slowest_worker, lowest, last->second.host, last->second.pid};
  // An answer may end its session, or bring the next request: nothing above holds then.
  struct Answer {
    std::shared_ptr<Session> session;
    uint64_t sequence;
    bool waits;
  };
  std::vector<Answer> answers;
  for (const auto& session : sessions_) {
    Session::ClockRequest& request = session->clock;
    if (!request.waits) continue;
    const int64_t lead = members_[session->worker()].clock - lowest;
    request.waits = static_cast<uint64_t>(lead) > request.ahead;
    if (request.waits && request.told == slowest_worker && request.told_clock == lowest) continue;
    request.told = slowest_worker;
    request.told_clock = lowest;
    answers.push_back({session, request.sequence, request.waits});
  }
  for (const Answer& answer : answers) {
    if (answer.waits) {
      answer.session->answer(What::kWaiting, answer.sequence, encode(waiting));
    } else {
      answer.session->answer(What::kDone, answer.sequence, lowest);
    }
  }
}

void ServerCore::drop(Session& session, const std::string& reason) {
  if (options_.logger != nullptr) {
    const auto found = members_.find(session.worker());
    const Member member = found != members_.end() ? found->second : Member{};
    options_.logger->log(LogLevel::kWarning, "%s: drops %s: %s", own_text().c_str(),
                         who(session.worker(), member.host, member.pid).c_str(), reason.c_str());
  }
  on_lost(session, reason);
}

void ServerCore::on_lost(Session& session, const std::string& reason) {
  const auto keep = session.shared_from_this();
  session.close();
  sessions_.erase(keep);
  const auto found = members_.find(session.worker());
  if (found == members_.end() || found->second.session != &session) return;
  Member& member = found->second;
  member.session = nullptr;
  member.absent_ns = monotonic_ns();
  --statistics_->workers;
  if (!member.said_goodbye && options_.logger != nullptr) {
    options_.logger->log(LogLevel::kWarning, "%s: %s is lost: %s; %s", own_text().c_str(),
                         who(session.worker(), member.host, member.pid).c_str(), reason.c_str(),
                         after_loss().c_str());
  }
  review_clocks();
  look_for_end();
}

void ServerCore::tick() {
  if (watcher_ != nullptr) (void)watcher_->set_interest(true, false);
  const int64_t now = monotonic_ns();
  statistics_->busy_ns = thread_cpu_ns();
  if (options_.silence_ms > 0) {
    std::vector<std::shared_ptr<Session>> silent;
    for (const auto& session : sessions_) {
      if (now - session->heard_ns(now) > options_.silence_ms * kNsPerMs) silent.push_back(session);
    }
    for (const auto& session : silent) {
      on_lost(*session, format("it has been silent for %lld ms",
                               static_cast<long long>(options_.silence_ms)));
    }
  }
  if (save_at_ns_ != 0 && now >= save_at_ns_ && saving_ == nullptr) {
    save([this](const Status& status) {
      if (status.ok() || options_.logger == nullptr) return;
      options_.logger->log(LogLevel::kWarning, "%s: its checkpoint failed: %s", own_text().c_str(),
                           status.message().c_str());
    });
  }
  look_for_end();
  timer_->start(kServerTickMs);
}

/// How long a lost worker may be away. While none has said goodbye the job is not near its end: if
/// all are lost, somebody is likely to start them again, and that takes as long as a first start.
int64_t ServerCore::patience_ms() const {
  const bool some_left = std::any_of(members_.begin(), members_.end(),
                                     [](const auto& each) { return each.second.said_goodbye; });
  return some_left ? options_.absent_ms : std::max(options_.absent_ms, options_.arrival_ms);
}

/// For texts: what follows when a worker is lost.
std::string ServerCore::after_loss() const {
  for (const auto& [worker, member] : members_) {
    if (member.session != nullptr) return "the others go on";
  }
  if (closed_) return "it was the last one";
  return format("no worker is connected now; one may come back within %lld ms",
                static_cast<long long>(patience_ms()));
}

bool ServerCore::gone(const Member& member, int64_t now_ns) const {
  if (member.session != nullptr) return false;
  return member.said_goodbye || closed_ || now_ns - member.absent_ns > patience_ms() * kNsPerMs;
}

/// Whether a worker that has not come yet still may.
bool ServerCore::may_come(int64_t now_ns) const {
  if (closed_) return false;
  const auto within = [&](int64_t limit_ms) { return now_ns - begun_ns_ <= limit_ms * kNsPerMs; };
  if (members_.empty()) return within(options_.arrival_ms);
  for (int32_t worker = 0; worker < options_.workers; ++worker) {
    if (members_.count(worker) != 0) continue;
    // In the place of a server that was lost, its workers come back at once, or were lost before.
    const bool was_there =
        replaces_ && std::any_of(known_.begin(), known_.end(),
                                 [&](const Known& each) { return each.worker == worker; });
    if (within(was_there ? options_.absent_ms : options_.arrival_ms)) return true;
  }
  return false;
}

void ServerCore::look_for_end() {
  if (ending_) return;
  const int64_t now = monotonic_ns();
  for (const auto& [worker, member] : members_) {
    if (!gone(member, now)) return;
  }
  const auto came = static_cast<int32_t>(members_.size());
  if (may_come(now)) return;
  ending_ = true;
  if (came == 0 && !closed_) {
    return end(Status(Code::kTimeout,
                      format("%s: no worker has come within %lld ms; look whether workers were "
                             "started, and with the same list of servers and the same token",
                             own_text().c_str(), static_cast<long long>(options_.arrival_ms))));
  }
  const Status how = came == 0 ? Status() : after_all_have_gone(now);
  if (options_.directory.empty()) return end(how);
  save([this, how](const Status& status) { end(status.ok() ? how : status); });
}

/// PEER_LOST if all workers were lost and none has said goodbye. If some have, those that were lost
/// are logged.
Status ServerCore::after_all_have_gone(int64_t now_ns) const {
  if (closed_) return {};  // who closed it knows how the workers ended
  const std::pair<const int32_t, Member>* last_lost = nullptr;
  bool some_left = false;
  int lost = 0;
  for (const auto& each : members_) {
    some_left |= each.second.said_goodbye;
    if (each.second.said_goodbye) continue;
    ++lost;
    if (last_lost == nullptr || each.second.absent_ns > last_lost->second.absent_ns) {
      last_lost = &each;
    }
  }
  if (last_lost == nullptr) return {};
  const auto& [worker, member] = *last_lost;
  std::string last = format("%s was lost %lld ms ago and did not come back",
                            who(worker, member.host, member.pid).c_str(),
                            static_cast<long long>((now_ns - member.absent_ns) / kNsPerMs));
  if (lost > 1)
    last += format(", nor did %d that %s lost before", lost - 1, lost > 2 ? "were" : "was");
  if (some_left) {
    if (options_.logger != nullptr) {
      options_.logger->log(LogLevel::kWarning,
                           "%s ends: workers have left, and %s; raise absent_ms if a lost worker "
                           "may be away for longer",
                           own_text().c_str(), last.c_str());
    }
    return {};
  }
  ErrorInfo info;
  info.code = Code::kPeerLost;
  info.rank = worker;
  info.host = member.host;
  info.pid = member.pid;
  info.message = format(
      "%s: all workers were lost, and none said goodbye: %s; find out why "
      "they ended, or raise arrival_ms if they are started again later",
      own_text().c_str(), last.c_str());
  return Status(std::move(info));
}

void ServerCore::end(Status status) {
  statistics_->busy_ns = thread_cpu_ns();
  end_status = std::move(status);
  ended.set();
}

void ServerCore::save(std::function<void(const Status&)> done) {
  if (options_.directory.empty()) {
    return done(Status(Code::kInvalidState,
                       own_text() + " has no directory for a checkpoint; give one where it is "
                                    "served"));
  }
  // What has changed since a save began may not be in its file.
  next_waiters_.push_back(std::move(done));
  if (saving_ == nullptr) begin_saving();
}

void ServerCore::begin_saving() {
  save_waiters_ = std::exchange(next_waiters_, {});
  save_at_ns_ = 0;
  std::vector<Known> workers;
  for (const auto& [worker, member] : members_) workers.push_back({worker, member.nonce});
  std::vector<Table*> tables;
  for (const auto& table : tables_) tables.push_back(table.get());
  const auto done = [this](const Status& status) {
    saving_ = nullptr;
    if (status.ok()) ++statistics_->saves;
    for (const auto& waiter : std::exchange(save_waiters_, {})) waiter(status);
    if (saving_ == nullptr && !next_waiters_.empty()) begin_saving();
  };
  saving_ = Saving::begin(loop_, files_,
                          checkpoint_path(options_.directory, options_.index, options_.servers),
                          tables, workers, done);
}

}  // namespace dt::ps
