// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <algorithm>
#include <vector>

#include "base/status.h"

namespace dt::config {
namespace {

constexpr int64_t kMaxRanks = INT32_MAX;
constexpr int64_t kMaxTimeoutMs = int64_t{365} * 24 * 3600 * 1000;  // a year
constexpr int64_t kMaxBucketBytes = int64_t{1} << 40;

constexpr char kSwitch[] = "auto, true, false";  // auto: NCCL decides

constexpr Agreement kAny = Agreement::kMayDiffer;
constexpr Agreement kSame = Agreement::kEqual;
constexpr Agreement kTold = Agreement::kEqualIfSet;
constexpr Agreement kJoin = Agreement::kJoined;

// clang-format off
// name, environment, type, unit, minimum, maximum, default, choices, agreement, guarded, description
constexpr Key kKeys[] = {
    {"job.id", "DT_JOB_ID", Type::kString, "", 0, 256, "", "", kJoin, false,
     "Name of the job; ranks that give another one are refused."},
    {"job.rank", "DT_RANK", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "This process's rank in [0, job.world_size); -1: ask the launcher."},
    {"job.world_size", "DT_WORLD_SIZE", Type::kInteger, "", -1, kMaxRanks, "-1", "", kJoin, false,
     "Number of ranks, at most 1048576; -1: ask the launcher."},
    {"job.local_rank", "DT_LOCAL_RANK", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "Index of this rank on its host; -1: the launcher or the join says."},
    {"job.local_size", "DT_LOCAL_SIZE", Type::kInteger, "", -1, kMaxRanks, "-1", "", kAny, false,
     "Ranks on this host; -1: the launcher or the join says."},
    {"job.node_rank", "DT_NODE_RANK", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "Index of this host; -1: the launcher or the join says."},
    {"job.node_count", "DT_NODE_COUNT", Type::kInteger, "", -1, kMaxRanks, "-1", "", kAny, false,
     "Number of hosts; -1: the launcher or the join says."},
    {"job.master_addr", "DT_MASTER_ADDR", Type::kString, "", 0, 255, "", "", kAny, false,
     "Host name or address where the store is served; empty: ask the launcher."},
    {"job.master_port", "DT_MASTER_PORT", Type::kInteger, "", 0, 65535, "0", "", kAny, false,
     "Port where the store is served; 0: ask the launcher."},
    {"job.attempt", "DT_ATTEMPT", Type::kInteger, "", 0, INT32_MAX, "0", "", kJoin, false,
     "How often the job was started before; ranks of another attempt are refused."},
    {"job.store_served", "DT_STORE_SERVED", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "The launcher serves the store at job.master_port, so rank 0 does not bind it."},
    {"job.store_relay_port", "DT_JOB_STORE_RELAY_PORT", Type::kInteger, "", 0, 65535, "0", "", kAny, false,
     "Where the relay of this node listens on loopback, as dt run says (store.relay); 0: there is none."},
    {"job.store_relay_address", "DT_JOB_STORE_RELAY_ADDRESS", Type::kString, "", 0, 255, "", "", kAny, false,
     "The numeric address at which that relay found the store."},
    {"job.host_id", "DT_HOST_ID", Type::kString, "", 0, 256, "", "", kAny, false,
     "Ranks with equal values count as one host; empty: boot id, host name and network namespace."},
    {"job.finalize_timeout_ms", "DT_JOB_FINALIZE_TIMEOUT_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "30000", "", kAny, false, "How long the goodbye waits for the other ranks."},

    {"rendezvous.timeout_ms", "DT_RENDEZVOUS_TIMEOUT_MS", Type::kInteger, "ms", 1, kMaxTimeoutMs,
     "300000", "", kAny, false, "How long the join waits for all ranks."},
    {"collective.timeout_ms", "DT_COLLECTIVE_TIMEOUT_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "600000", "", kAny, false, "How long one operation may take; 0: for ever."},
    {"collective.first_timeout_ms", "DT_COLLECTIVE_FIRST_TIMEOUT_MS", Type::kInteger, "ms", -1,
     kMaxTimeoutMs, "-1", "", kAny, false,
     "No operation times out in the first of these of a communicator; -1: 30 min, 0 if timeout_ms is set."},
    {"heartbeat.interval_ms", "DT_HEARTBEAT_INTERVAL_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "1000", "", kAny, false,
     "How often ranks and store give signs of life, as whoever serves the store says; 0: never."},
    {"heartbeat.timeout_ms", "DT_HEARTBEAT_TIMEOUT_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "10000", "", kAny, false, "After how long a silence the other side counts as lost; 0: never."},

    {"watchdog.stall_warn_ms", "DT_WATCHDOG_STALL_WARN_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "30000", "", kAny, false,
     "After how long inside one operation rank 0 logs who is inside and who is missing, and the "
     "process that serves the store who has not joined; 0: never."},
    {"watchdog.abort_timeout_ms", "DT_WATCHDOG_ABORT_TIMEOUT_MS", Type::kInteger, "ms", 100,
     kMaxTimeoutMs, "10000", "", kAny, false,
     "How long a call of CUDA or NCCL may take before it counts as hanging, once dt aborts its work. "
     "The time of an abort counts only while no other communicator has an operation on the GPU, and "
     "the inputs of the aborted operations are ready."},
    {"watchdog.exit", "DT_WATCHDOG_EXIT", Type::kEnum, "", 0, 0, "launched", "launched, always, never",
     kAny, false,
     "Whether such a process, which cannot use its GPU any more, is ended; launched: under dt run."},
    {"watchdog.check", "DT_WATCHDOG_CHECK", Type::kEnum, "", 0, 0, "lazy", "off, lazy, strict", kSame,
     false,
     "When collectives over NCCL are compared between ranks: never, with each heartbeat (so only where "
     "heartbeat.interval_ms is not 0), before each."},

    {"store.bind", "DT_STORE_BIND", Type::kString, "", 0, 255, "", "", kAny, false,
     "Address the store listens on (dt run on one node: loopback in any case); empty: the one that "
     "peers use, or all where rank 0's name leads to loopback on its own host; loopback with one "
     "host that no MASTER_ADDR names otherwise."},
    {"store.max_connections", "DT_STORE_MAX_CONNECTIONS", Type::kInteger, "", 1, 1 << 20, "16384", "",
     kAny, false, "Clients that the store serves at once; more are refused."},
    {"store.memory_mb", "DT_STORE_MEMORY_MB", Type::kInteger, "", 0, 1 << 20, "0", "", kAny, false,
     "MiB that the store keeps for connections, and for keys; 0: a quarter of the memory, 64 to 4096."},
    {"store.torch_compat", "DT_STORE_TORCH_COMPAT", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "The store answers clients of PyTorch's TCPStore too; dt run points MASTER_PORT at it."},
    {"store.torch_address", "DT_STORE_TORCH_ADDRESS", Type::kString, "", 0, 270, "", "", kAny, false,
     "host:port of a store that PyTorch serves, where ranks meet; empty: torchrun's, if there is one."},
    {"store.relay", "DT_STORE_RELAY", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "dt run brings the ranks of its node to the store over one connection, for jobs of thousands of ranks."},

    {"security.mode", "DT_SECURITY_MODE", Type::kEnum, "", 0, 0, "auto", "auto, none, auth, encrypt",
     kSame, true,
     "How connections are guarded; auto: auth with a token, else none, and then on loopback only."},
    {"security.token_file", "DT_TOKEN_FILE", Type::kString, "", 0, 4096, "", "", kAny, true,
     "File with the job's token, 64 hexadecimal digits, that only its user can read (dt token)."},

    {"network.interface", "DT_NETWORK_INTERFACE", Type::kString, "", 0, 255, "", "", kAny, false,
     "Name, network (10.1.0.0/16) or address for other hosts; empty: by the route to the store."},
    {"network.port_range", "DT_NETWORK_PORT_RANGE", Type::kString, "", 0, 11, "", "", kAny, false,
     "Ports where ranks listen for other hosts, as 29600-29699; empty: the kernel chooses."},
    {"network.congestion", "DT_NETWORK_CONGESTION", Type::kString, "", 0, 15, "auto", "", kAny, false,
     "Congestion control between hosts: the kernel's name, system, or auto: cubic for bbr on short ways."},
    {"network.connections", "DT_NETWORK_CONNECTIONS", Type::kInteger, "", 1, 64, "1", "", kTold, false,
     "Connections of two ranks of different hosts; several pay where packets get lost on a long way."},
    {"network.algorithm", "DT_NETWORK_ALGORITHM", Type::kEnum, "", 0, 0, "auto",
     "auto, direct, halving, ring", kSame, false,
     "How three or more hosts exchange: all at once, halves and quarters, or along a ring; auto: by size."},

    {"host.spin_us", "DT_HOST_SPIN_US", Type::kInteger, "us", 0, 1000000, "50", "", kAny, false,
     "How long a wait for a local rank spins before it hands the core over."},
    {"host.spin_adapts", "DT_HOST_SPIN_ADAPTS", Type::kBool, "", 0, 0, "true", "", kAny, false,
     "Waits sleep without spinning while other busy threads share the rank's processors."},
    {"host.progress", "DT_HOST_PROGRESS", Type::kEnum, "", 0, 0, "thread", "thread, caller", kTold, false,
     "Who advances works of host communicators: a thread of dt, or only calls of dt (one host only)."},
    {"host.progress_cpus", "DT_HOST_PROGRESS_CPUS", Type::kString, "", 0, 4096, "", "", kAny, false,
     "Processors of the threads that advance works, as in \"1,3-5\"; empty: those of the program."},
    {"host.numa", "DT_HOST_NUMA", Type::kString, "", 0, 8192, "auto", "", kTold, false,
     "Where local ranks live: auto: by their processors; off: no matter; or their nodes, as 0,0,1,1."},
    {"host.spread", "DT_HOST_SPREAD", Type::kBool, "", 0, 0, "true", "", kAny, false,
     "A waiting rank leaves a processor with two ranks more than another one that it may use."},
    {"host.inline_bytes", "DT_HOST_INLINE_BYTES", Type::kInteger, "bytes", 0, 16 << 20, "8192", "",
     kSame, false, "Largest message that goes through the slots in one shot."},
    {"host.slot_bytes", "DT_HOST_SLOT_BYTES", Type::kInteger, "bytes", 4096, 16777216, "65536", "",
     kSame, false, "Chunk in which longer messages pass the arena; twice that beyond host.exchange_ranks."},
    {"host.ring_bytes", "DT_HOST_RING_BYTES", Type::kInteger, "bytes", 4096, 1 << 30, "2031616", "",
     kTold, false, "Memory of a rank in a communicator for these, at least four; half of it beyond exchange_ranks."},
    {"host.segment_bytes", "DT_HOST_SEGMENT_BYTES", Type::kInteger, "bytes", 4096, 16777216, "65536",
     "", kTold, false, "Below a chunk: what messages through the arena are not cut smaller than."},
    {"host.segments", "DT_HOST_SEGMENTS", Type::kInteger, "", 1, 1024, "8", "", kTold, false,
     "Into how many pieces such a message is cut where that lies between segment and chunk."},
    {"host.exchange_ranks", "DT_HOST_EXCHANGE_RANKS", Type::kInteger, "", 1, kMaxRanks, "2", "", kTold,
     false, "Up to so many local ranks each sums such a message itself; with more the sum is shared."},
    {"host.streaming_bytes", "DT_HOST_STREAMING_BYTES", Type::kInteger, "bytes", 0, int64_t{1} << 50,
     "67108864", "", kTold, false,
     "Of all buffers together: from here on results in buffers of their own go past the caches."},
    {"host.push_bytes", "DT_HOST_PUSH_BYTES", Type::kInteger, "bytes", 4096, 1 << 30, "524288", "",
     kTold, false, "How much of dt_mem_alloc buffers is done between looks at other operations."},
    {"host.mapped_bytes", "DT_HOST_MAPPED_BYTES", Type::kInteger, "bytes", 0, int64_t{1} << 50, "4096",
     "", kTold, false, "From this size on dt_send from a dt_mem_alloc buffer is not copied."},
    {"host.staging", "DT_HOST_STAGING", Type::kEnum, "", 0, 0, "auto", "auto, cached, streaming", kAny,
     false, "Stores that copy into the arena: usual, past the caches, or whichever measures faster."},

    {"backend.name", "DT_BACKEND_NAME", Type::kEnum, "", 0, 0, "auto", "auto, host, nccl", kSame, false,
     "What carries the collectives out; nccl: over GPU memory; auto: host."},
    {"backend.device", "DT_BACKEND_DEVICE", Type::kInteger, "", -1, 1023, "-1", "", kAny, false,
     "Number of the GPU that nccl uses, as this process counts; -1: its local rank."},
    {"backend.shared_gpu", "DT_BACKEND_SHARED_GPU", Type::kEnum, "", 0, 0, "refuse", "refuse, host",
     kSame, false, "Ranks that hold the same GPU: an error, or exchange through host memory, slowly."},

    {"nccl.library", "DT_NCCL_LIBRARY", Type::kString, "", 0, 4096, "", "", kAny, true,
     "Path of NCCL; empty: a copy that is loaded already, then libnccl.so.2."},
    {"nccl.stream_priority", "DT_NCCL_STREAM_PRIORITY", Type::kEnum, "", 0, 0, "high",
     "high, normal", kAny, false, "Priority of the stream that NCCL's kernels run on."},
    {"nccl.init_timeout_ms", "DT_NCCL_INIT_TIMEOUT_MS", Type::kInteger, "ms", 1, kMaxTimeoutMs,
     "60000", "", kAny, false, "How long making a communicator may take."},
    {"nccl.register", "DT_NCCL_REGISTER", Type::kEnum, "", 0, 0, "off", "off, on", kTold, false,
     "Memory of dt_mem_alloc and of reducers is NCCL's and registered: then all ranks must use such."},
    {"nccl.setenv", "DT_NCCL_SETENV", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "dt_init writes these settings into the environment of the program; dt run always does."},
    {"nccl.inherit", "DT_NCCL_INHERIT", Type::kEnum, "", 0, 0, "warn", "warn, override", kAny,
     false,
     "What NCCL_* variables that are set already do; warn: dt.toml wins. With override they win."},
    {"nccl.env", "DT_NCCL_ENV", Type::kVariables, "", 0, 4096, "", "", kTold, false,
     "NCCL_* variables that have no key here, as a table: [nccl.env] NCCL_X = 1."},
    {"nccl.max_ctas", "DT_NCCL_MAX_CTAS", Type::kInteger, "", 0, 64, "0", "", kTold, false,
     "Most thread blocks (multiprocessors) that an operation takes; 0: NCCL decides."},
    {"nccl.min_ctas", "DT_NCCL_MIN_CTAS", Type::kInteger, "", 0, 64, "0", "", kTold, false,
     "Fewest thread blocks, only together with max_ctas; 0: NCCL decides."},
    {"nccl.nvls_ctas", "DT_NCCL_NVLS_CTAS", Type::kInteger, "", 0, 64, "0", "", kTold, false,
     "Thread blocks of operations by NVLS; 0: NCCL decides."},
    {"nccl.cga_cluster_size", "DT_NCCL_CGA_CLUSTER_SIZE", Type::kInteger, "", -1, 8, "-1", "",
     kTold, false, "Thread blocks that start together; -1: NCCL decides."},
    {"nccl.cta_policy", "DT_NCCL_CTA_POLICY", Type::kEnum, "", 0, 0, "auto",
     "auto, default, efficiency, zero", kTold, false,
     "Whether few thread blocks matter more than speed; auto: NCCL decides."},
    {"nccl.nchannels_per_net_peer", "DT_NCCL_NCHANNELS_PER_NET_PEER", Type::kInteger, "", 0, 64,
     "0", "", kTold, false, "Channels to each peer on another host; 0: NCCL decides."},
    {"nccl.nvlink_centric_sched", "DT_NCCL_NVLINK_CENTRIC_SCHED", Type::kEnum, "", 0, 0, "auto",
     kSwitch, kTold, false, "Place thread blocks by their use of NVLink; auto: NCCL decides."},
    {"nccl.collnet_enable", "DT_NCCL_COLLNET_ENABLE", Type::kEnum, "", 0, 0, "auto", kSwitch,
     kTold, false, "Reduce in the network's switches, which needs a plugin; auto: NCCL decides."},
    {"nccl.net_name", "DT_NCCL_NET_NAME", Type::kString, "", 0, 255, "", "", kTold, false,
     "What carries data between hosts: IB, Socket or a plugin's; empty: NCCL decides."},
    {"nccl.traffic_class", "DT_NCCL_TRAFFIC_CLASS", Type::kInteger, "", -1, 255, "-1", "", kAny,
     false, "Class of the traffic on the network; -1: NCCL decides."},
    {"nccl.socket_ifname", "DT_NCCL_SOCKET_IFNAME", Type::kString, "", 0, 1024, "", "", kAny, false,
     "NCCL's interfaces as prefixes: eth, =eth0 for one alone, ^docker for none of these."},
    {"nccl.socket_family", "DT_NCCL_SOCKET_FAMILY", Type::kEnum, "", 0, 0, "auto",
     "auto, AF_INET, AF_INET6", kAny, false, "Addresses that NCCL uses."},
    {"nccl.ib_hca", "DT_NCCL_IB_HCA", Type::kString, "", 0, 1024, "", "", kAny, false,
     "InfiniBand devices as prefixes: =mlx5_1 for one alone, as mlx5_1 takes mlx5_10, too."},
    {"nccl.ib_gid_index", "DT_NCCL_IB_GID_INDEX", Type::kInteger, "", -1, 255, "-1", "", kAny,
     false, "Index of the GID for RoCE; -1: NCCL decides."},
    {"nccl.ib_timeout", "DT_NCCL_IB_TIMEOUT", Type::kInteger, "", -1, 31, "-1", "", kAny, false,
     "InfiniBand's timeout, 4 us times 2 to this power; -1: NCCL decides."},
    {"nccl.ib_retry_cnt", "DT_NCCL_IB_RETRY_CNT", Type::kInteger, "", -1, 7, "-1", "", kAny, false,
     "How often InfiniBand tries again; -1: NCCL decides."},
    {"nccl.ib_tc", "DT_NCCL_IB_TC", Type::kInteger, "", -1, 255, "-1", "", kAny, false,
     "InfiniBand's traffic class; -1: NCCL decides."},
    {"nccl.ib_sl", "DT_NCCL_IB_SL", Type::kInteger, "", -1, 15, "-1", "", kAny, false,
     "InfiniBand's service level; -1: NCCL decides."},
    {"nccl.ib_qps_per_connection", "DT_NCCL_IB_QPS_PER_CONNECTION", Type::kInteger, "", 0, 128,
     "0", "", kAny, false, "InfiniBand's queue pairs for each connection; 0: NCCL decides."},
    {"nccl.ib_disable", "DT_NCCL_IB_DISABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold, false,
     "Do without InfiniBand and RoCE."},
    {"nccl.net_plugin", "DT_NCCL_NET_PLUGIN", Type::kString, "", 0, 4096, "", "", kTold, true,
     "Library for the network that NCCL loads."},
    {"nccl.net_gdr_level", "DT_NCCL_NET_GDR_LEVEL", Type::kEnum, "", 0, 0, "auto",
     "auto, LOC, PIX, PXB, PHB, SYS", kAny, false,
     "How far a GPU may be from the network card that reads its memory."},
    {"nccl.cross_nic", "DT_NCCL_CROSS_NIC", Type::kInteger, "", -1, 2, "-1", "", kAny, false,
     "Whether rings go through different cards: 0 no, 1 yes, 2 if better; -1: NCCL decides."},
    {"nccl.oob_net_enable", "DT_NCCL_OOB_NET_ENABLE", Type::kEnum, "", 0, 0, "auto", kSwitch,
     kTold, false, "Exchange addresses by the network plugin instead of sockets."},
    {"nccl.topo_file", "DT_NCCL_TOPO_FILE", Type::kString, "", 0, 4096, "", "", kAny, false,
     "XML file that describes the machine to NCCL."},
    {"nccl.ras_addr", "DT_NCCL_RAS_ADDR", Type::kString, "", 0, 255, "", "", kAny, false,
     "host:port where NCCL's RAS service answers."},
    {"nccl.ras_enable", "DT_NCCL_RAS_ENABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kAny, false,
     "NCCL's RAS service, which can be asked what a job waits for."},
    {"nccl.ignore_cpu_affinity", "DT_NCCL_IGNORE_CPU_AFFINITY", Type::kEnum, "", 0, 0, "auto",
     kSwitch, kAny, false, "NCCL's threads ignore the processors that the process is bound to."},
    {"nccl.cumem_enable", "DT_NCCL_CUMEM_ENABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold,
     false, "Memory by CUDA's virtual memory functions."},
    {"nccl.mnnvl_enable", "DT_NCCL_MNNVL_ENABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold,
     false, "NVLink between hosts."},
    {"nccl.nvls_enable", "DT_NCCL_NVLS_ENABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold,
     false, "Sums in NVSwitch; false for equal bits in every run."},
    {"nccl.buffsize", "DT_NCCL_BUFFSIZE", Type::kInteger, "bytes", 0, 1 << 30, "0", "", kTold,
     false, "Buffer of each channel and peer; 0: NCCL decides."},
    {"nccl.nthreads", "DT_NCCL_NTHREADS", Type::kInteger, "", 0, 640, "0", "", kTold, false,
     "Threads of a thread block; 0: NCCL decides."},
    {"nccl.algo", "DT_NCCL_ALGO", Type::kString, "", 0, 1024, "", "", kTold, false,
     "Algorithms, as Ring or allreduce:tree,ring; empty: NCCL decides."},
    {"nccl.proto", "DT_NCCL_PROTO", Type::kString, "", 0, 1024, "", "", kTold, false,
     "Protocols, as Simple or ^LL128; LL128 on wrong hardware corrupts data; empty: NCCL decides."},
    {"nccl.runtime_connect", "DT_NCCL_RUNTIME_CONNECT", Type::kEnum, "", 0, 0, "auto", kSwitch,
     kTold, false, "Connect to peers when first needed, not at once."},
    {"nccl.launch_order_implicit", "DT_NCCL_LAUNCH_ORDER_IMPLICIT", Type::kEnum, "", 0, 0, "auto",
     kSwitch, kTold, false, "Keep the host's order of operations among communicators of a GPU."},
    {"nccl.pxn_disable", "DT_NCCL_PXN_DISABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold,
     false, "Do not send through the card of another GPU of the host."},
    {"nccl.graph_mixing_support", "DT_NCCL_GRAPH_MIXING_SUPPORT", Type::kEnum, "", 0, 0, "auto",
     kSwitch, kTold, false, "Allow operations beside CUDA graphs that contain some."},
    {"nccl.debug", "DT_NCCL_DEBUG", Type::kEnum, "", 0, 0, "auto",
     "auto, VERSION, WARN, INFO, ABORT, TRACE", kAny, false, "What NCCL tells."},
    {"nccl.debug_subsys", "DT_NCCL_DEBUG_SUBSYS", Type::kString, "", 0, 1024, "", "", kAny, false,
     "Parts of NCCL that tell: INIT, COLL, NET, GRAPH, ALL, ..."},
    {"nccl.debug_file", "DT_NCCL_DEBUG_FILE", Type::kString, "", 0, 4096, "", "", kAny, true,
     "File for what NCCL tells, with %h for the host and %p for the process; empty: stdout."},
    {"nccl.debug_timestamp_format", "DT_NCCL_DEBUG_TIMESTAMP_FORMAT", Type::kString, "", 0, 255,
     "", "", kAny, false, "Times in what NCCL tells, as strftime writes them."},
    {"nccl.p2p_disable", "DT_NCCL_P2P_DISABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold,
     false, "Do not copy between GPUs of a host directly."},
    {"nccl.p2p_level", "DT_NCCL_P2P_LEVEL", Type::kEnum, "", 0, 0, "auto",
     "auto, LOC, NVL, PIX, PXB, PHB, SYS", kTold, false,
     "How far GPUs may be apart that copy directly."},
    {"nccl.shm_disable", "DT_NCCL_SHM_DISABLE", Type::kEnum, "", 0, 0, "auto", kSwitch, kTold,
     false, "Do without shared memory between processes."},
    {"nccl.check_mode", "DT_NCCL_CHECK_MODE", Type::kString, "", 0, 255, "", "", kTold, false,
     "What NCCL checks of each call (2.29.7 and newer)."},
    {"nccl.profiler_plugin", "DT_NCCL_PROFILER_PLUGIN", Type::kString, "", 0, 4096, "", "", kAny,
     true, "Profiler that NCCL loads."},
    {"nccl.tuner_plugin", "DT_NCCL_TUNER_PLUGIN", Type::kString, "", 0, 4096, "", "", kTold, true,
     "Library that chooses algorithms, which NCCL loads."},

    {"reducer.bucket_cap_bytes", "DT_REDUCER_BUCKET_CAP_BYTES", Type::kInteger, "bytes", 1,
     kMaxBucketBytes, "26214400", "", kSame, false, "A bucket closes when it reaches this."},
    {"reducer.first_bucket_bytes", "DT_REDUCER_FIRST_BUCKET_BYTES", Type::kInteger, "bytes", 1,
     kMaxBucketBytes, "1048576", "", kSame, false,
     "The same for the first bucket, which is small so that communication starts early."},
    {"reducer.rebuild", "DT_REDUCER_REBUILD", Type::kBool, "", 0, 0, "true", "", kSame, false,
     "Order the buckets anew after the first step, as the gradients arrived on rank 0."},
    {"reducer.check_steps", "DT_REDUCER_CHECK_STEPS", Type::kInteger, "steps", 0, 1'000'000'000, "0",
     "", kSame, false,
     "How often dt_reducer_finish compares the parameters of dt_reducer_watch between ranks: in the "
     "first step and each time that many have passed; 0: never."},
    {"reducer.log_steps", "DT_REDUCER_LOG_STEPS", Type::kInteger, "steps", 0, 1'000'000'000, "0", "",
     kAny, false,
     "After how many steps rank 0 of a communicator logs what a step took, whatever log.level is; "
     "0: never."},

    {"ps.servers", "DT_PS_SERVERS", Type::kString, "", 0, 1 << 20, "", "", kAny, false,
     "host:port of each parameter server, by index, with commas between; empty: ask the launcher."},
    {"ps.index", "DT_PS_INDEX", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "Which parameter server this process is; -1: none, or the launcher says."},
    {"ps.workers", "DT_PS_WORKERS", Type::kInteger, "", 0, kMaxRanks, "0", "", kAny, false,
     "How many workers the parameter servers have; 0: ask the launcher, or the job's ranks."},

    {"record.entries", "DT_RECORD_ENTRIES", Type::kInteger, "", 0, 1 << 20, "4096", "", kAny, false,
     "Last operations that the flight recorder of a rank holds, up to a power of two; 0: none."},
    {"trace.dir", "DT_TRACE_DIR", Type::kString, "", 0, 4096, "", "", kAny, true,
     "Directory where a rank writes its trace at the first failure; empty: it writes none."},

    {"metrics.file", "DT_METRICS_FILE", Type::kString, "", 0, 4096, "", "", kAny, true,
     "File that holds a rank's counters for Prometheus, {rank} in it is its number; empty: none."},
    {"metrics.interval_ms", "DT_METRICS_INTERVAL_MS", Type::kInteger, "ms", 10, kMaxTimeoutMs, "10000",
     "", kAny, false, "How often that file is replaced; also at the end of the job."},
    {"metrics.port", "DT_METRICS_PORT", Type::kInteger, "", -1, 65535, "0", "", kAny, false,
     "The rank answers GET /metrics on 127.0.0.1, port plus local rank; 0: none, -1: free ports."},

    {"log.level", "DT_LOG_LEVEL", Type::kEnum, "", 0, 0, "warning", "error, warning, info, debug",
     kAny, false, "Messages up to this level are written."},

    {"run.grace_ms", "DT_RUN_GRACE_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs, "15000", "", kAny,
     false,
     "From a rank's first failure to SIGKILL for the others; if given, also from when dt run passes "
     "SIGINT or SIGTERM on to the ranks; for parameter servers see launching.md."},
    {"run.stop_grace_ms", "DT_RUN_STOP_GRACE_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs, "30000", "",
     kAny, false,
     "How long SIGTERM to dt run is kept from ranks that ask dt_stop_requested and are told so."},
    {"run.elastic_wait_ms", "DT_RUN_ELASTIC_WAIT_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs, "30000",
     "", kAny, false, "How long dt run --min-nodes waits for all nodes before it begins with fewer."},
    {"run.allow_minority", "DT_RUN_ALLOW_MINORITY", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "dt run --min-nodes goes on without a majority of the nodes that were there before. Then nothing "
     "keeps the two sides of a broken network from running both."},
    {"run.prefix", "DT_RUN_PREFIX", Type::kBool, "", 0, 0, "true", "", kAny, false,
     "dt run puts the rank in front of each line."},
    {"run.show_lines", "DT_RUN_SHOW_LINES", Type::kInteger, "", 0, 100000, "30", "", kAny, false,
     "Last lines of the failing rank that dt run shows at the end."},
};
// clang-format on

/// Levenshtein's distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above + 1, row[j - 1] + 1, replaced});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string_view section_of(std::string_view name) { return name.substr(0, name.find('.')); }

/// Remembers the candidate that is closest so far and within a third of its letters.
struct Nearest {
  std::string_view wanted;
  size_t distance = SIZE_MAX;
  std::string name;

  void offer(std::string_view seen, std::string_view candidate) {
    const size_t found = edit_distance(wanted, seen);
    const size_t limit = std::max<size_t>(2, seen.size() / 3);
    if (found > limit || found >= distance) return;
    distance = found;
    name = candidate;
  }
};

std::string range_text(const Key& key) {
  return (*key.unit ? std::string(" in ") + key.unit : "") +
         format(" from %lld to %lld", static_cast<long long>(key.minimum),
                static_cast<long long>(key.maximum));
}

}  // namespace

std::span<const Key> keys() { return kKeys; }

const Key* find_key(std::span<const Key> table, std::string_view name) {
  for (const Key& key : table) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

std::string nearest_name(std::span<const Key> table, std::string_view name) {
  constexpr size_t kLongestName = 128;  // nobody mistypes a key at such a length
  if (name.empty() || name.size() > kLongestName) return {};
  Nearest nearest{name, SIZE_MAX, {}};
  if (name.find('.') == std::string_view::npos) {
    for (const Key& key : table) nearest.offer(section_of(key.name), section_of(key.name));
    // Also a key written without its section.
    for (const Key& key : table) {
      nearest.offer(std::string_view(key.name).substr(section_of(key.name).size() + 1), key.name);
    }
  } else {
    for (const Key& key : table) nearest.offer(key.name, key.name);
    if (!nearest.name.empty()) return nearest.name;
    // Right word in the wrong section.
    const std::string_view last = name.substr(name.rfind('.') + 1);
    for (const Key& key : table) {
      if (last == std::string_view(key.name).substr(section_of(key.name).size() + 1)) {
        return key.name;
      }
    }
  }
  return nearest.name;
}

std::string expectation(const Key& key) {
  switch (key.type) {
    case Type::kBool: return "true or false";
    case Type::kInteger: return "an integer" + range_text(key);
    case Type::kString:
      return format("a string of at most %lld bytes", static_cast<long long>(key.maximum));
    case Type::kEnum: return std::string("one of ") + key.choices;
    case Type::kVariables:
      return format("names and values without blanks, as NAME=value, of at most %lld bytes",
                    static_cast<long long>(key.maximum));
  }
  return {};
}

}  // namespace dt::config
