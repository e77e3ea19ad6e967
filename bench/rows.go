package main

import "fmt"

// row describes one line of the report. What a target compares is chosen row by row.
type row struct {
	name   string // for --only, and the key in the JSON
	what   string
	floor  string
	unit   string
	good   direction
	target target
}

// target is what a row is held to: its ratio, its difference to the floor, our own figure, the p99
// of our attempts, or its difference to the floor's, at most a limit where lower is better and at
// least the limit where higher is.
type target struct {
	of    measure
	limit float64
}

type measure string

const (
	ratio      measure = "ratio"
	difference measure = "difference"
	ours       measure = "ours"
	tail       measure = "p99"
	// tailDifference is how much the p99 of our attempts is beyond that of the floor's.
	tailDifference measure = "p99 difference"
)

// value returns what the target compares.
func (t target) value(p pair, good direction) float64 {
	switch t.of {
	case ratio:
		return p.ratio(good)
	case difference:
		return p.difference(good)
	case tail:
		return p.ours.tail(good)
	case tailDifference:
		return p.ours.tail(good) - p.floor.tail(good)
	default:
		return p.ours.effective(good)
	}
}

func (t target) met(p pair, good direction) bool {
	if good == higher {
		return t.value(p, good) >= t.limit
	}
	return t.value(p, good) <= t.limit
}

// text is the target for readers.
func (r row) text() string {
	sign := "≤"
	if r.good == higher {
		sign = "≥"
	}
	switch r.target.of {
	case ratio:
		return fmt.Sprintf("%s %s×", sign, number(r.target.limit))
	case difference:
		return fmt.Sprintf("%s +%s %s", sign, number(r.target.limit), r.unit)
	case tail:
		return fmt.Sprintf("p99 %s %s %s", sign, number(r.target.limit), r.unit)
	default:
		return fmt.Sprintf("%s %s %s", sign, number(r.target.limit), r.unit)
	}
}

const (
	milliseconds = "ms"
	mebibytes    = "MiB"
	percent      = "%"
	perSecond    = "/s"
	mebiPerSec   = "MiB/s"
)

// The rows' names, which the code that measures them uses.
const (
	rowCommand     = "command"
	rowFirstByte   = "first-byte"
	rowCell        = "cell"
	rowStateless   = "stateless"
	rowLines       = "lines"
	rowStream      = "stream"
	rowUpload      = "upload"
	rowDownload    = "download"
	rowSearch      = "search"
	rowStart       = "start"
	rowIdle        = "rss-idle"
	rowStreams     = "rss-streams"
	rowAfterUpload = "rss-upload"
	rowAfterBurst  = "rss-after"
	rowCreate      = "create"
	rowAccept      = "accept"
	rowPause       = "pause"
	rowGet         = "get"
	rowList        = "list"
	rowExpiry      = "expiry"
	rowCrowd       = "creates-200"
	rowService     = "rss-service"
	rowPool        = "pool-100"
	rowDelete      = "delete"
	rowStop        = "stop"
	rowInterrupt   = "interrupt"
	rowFirstExpiry = "first-expiry"
	rowGetBusy     = "get-busy"
	rowRestart     = "restart-200"

	rowCreateEgress  = "create-egress"
	rowCreateSpare   = "create-spare"
	rowDeleteSpare   = "delete-spare"
	rowEgressSpare   = "create-egress-spare"
	rowStatelessMany = "stateless-10"

	rowCreateLocal      = "local-create"
	rowCreateLocalTail  = "local-create-p99"
	rowCreateLocalRatio = "local-create-docker"
	rowCreateLocalRunc  = "local-create-runc"
	rowCreateLocalRunsc = "local-create-runsc"
	rowDeleteLocal      = "local-delete"
	rowPauseLocal       = "local-pause"
	rowCrowdLocal       = "local-creates-100"
	rowIdleLocal        = "local-idle-500"
	rowBusyLocal        = "local-command-500"
	rowSleepLocal       = "local-sleep-500"
	rowPullLocal        = "local-pull"
	rowE2BCreate        = "e2b-create"
	rowE2BList          = "e2b-list-1000"
	rowLeague           = "league-sequential"
	rowLeagueStaggered  = "league-staggered"
	rowLeagueBurst      = "league-burst"
	rowWaits            = "waits-1500"

	rowSnapshotClean       = "snapshot-clean"
	rowSnapshotSmall       = "snapshot-1mib"
	rowSnapshotSmallFrozen = "snapshot-1mib-frozen"
	rowSnapshotLarge       = "snapshot-10000"
	rowSnapshotLargeFrozen = "snapshot-10000-frozen"
	rowRollback            = "rollback"
	rowMemorySnapshot      = "memory-snapshot"
	rowMemoryRollback      = "memory-rollback"
	rowFork                = "fork-10"
	rowTrajectory          = "trajectory-100"
	rowWake                = "wake"

	rowIngressOne      = "ingress-1"
	rowIngressMany     = "ingress-16"
	rowIngressDownload = "ingress-download"
	rowIngressMemory   = "ingress-rss"

	rowEgressDNS    = "egress-dns"
	rowEgressNames  = "egress-names"
	rowEgressPacket = "egress-packets"
	rowEgressStream = "egress-stream"
	rowEgressChange = "egress-change"
	rowEgressMemory = "egress-rss"

	rowEgressChangeMany = "egress-change-8192"
	rowEgressCPU        = "egress-cpu"
)

// peers are the rows that another program is measured for, too, and what it does.
func peers() map[string]string {
	return map[string]string{
		rowPool:        "a Deployment scaled to 100 on the same nodes, until ready",
		rowCreateLocal: "Podman with crun, create and start of a container of the same image with the same limits of memory and processes and one port,",
	}
}

// rows lists every row, in the order of the report.
func rows() []row {
	return []row{
		{rowCommand, "command `true`: POST to its completion event",
			"fork, exec and wait of `bash -c true`",
			milliseconds, lower, target{ratio, 1.5}},
		{rowFirstByte, "first byte of a command's output", "the same process read through a pipe",
			milliseconds, lower, target{difference, 2}},
		{rowStop, "interrupt of a command until its stream has reported the end",
			"SIGTERM and wait of the same process",
			milliseconds, lower, target{difference, 2}},
		{rowCell, "cell `1+1` in a context: POST to its completion event",
			"the same in a kernel spoken to directly",
			milliseconds, lower, target{difference, 2}},
		{rowStateless, "cell `1+1` without a context, a spare kernel at hand",
			"the same in a kernel spoken to directly",
			milliseconds, lower, target{ours, 60}},
		{rowStatelessMany, "each of ten cells `1+1` without a context, one after the other",
			"a kernel started and asked directly",
			milliseconds, lower, target{ratio, 1.2}},
		{rowInterrupt, "interrupt of a cell that runs until the next cell of the context has ended",
			"the same in a kernel spoken to directly",
			milliseconds, lower, target{difference, 5}},
		{rowLines, "lines of `seq`, one event each, compared byte by byte",
			"`bufio.Scanner` on the pipe",
			perSecond, higher, target{ours, 1e6}},
		{rowStream, "lines of 1000 bytes streamed, compared byte by byte",
			"reading the pipe, compared byte by byte",
			mebiPerSec, higher, target{ours, 200}},
		{rowUpload, "multipart upload: written, synced, renamed",
			"a raw body, written and synced by a net/http handler",
			mebiPerSec, higher, target{ratio, 0.8}},
		{rowDownload, "download of a file", "a net/http handler with `http.ServeFile`",
			mebiPerSec, higher, target{ratio, 0.95}},
		{rowSearch, "search that finds 100 000 files, answer decoded",
			"`filepath.WalkDir` with the facts of each file",
			milliseconds, lower, target{ours, 1000}},
		{rowStart, "start of execd: exec to its first answer",
			"the same of a minimal net/http program",
			milliseconds, lower, target{ours, 6}},
		{rowIdle, "resident memory of execd, idle", "a minimal net/http program, idle",
			mebibytes, lower, target{ours, 12}},
		{rowStreams, "resident memory of execd, with 1000 commands running and streamed",
			"a minimal net/http program with 1000 open responses",
			mebibytes, lower, target{ours, 45}},
		{rowAfterUpload, "resident memory of execd, after an upload",
			"a minimal net/http program after a raw upload of the same size",
			mebibytes, lower, target{ours, 25}},
		{rowAfterBurst, "resident memory of execd, 10 s after 1000 streams and an upload",
			"a minimal net/http program, likewise",
			mebibytes, lower, target{ours, 16}},
		{rowCreate, "cold create: POST to the first output of a command",
			"the engine's create and start, on its bridge",
			milliseconds, lower, target{ratio, 1.1}},
		{rowAccept, "durable accept: POST to its 202",
			"4 KiB appended and fdatasync, on the same disk",
			milliseconds, lower, target{ratio, 5}},
		{rowCreateEgress,
			"cold create with an egress sidecar: POST to the first output of a command",
			"the engine's create and start, on its bridge",
			milliseconds, lower, target{ratio, 2.2}},
		{rowCreateSpare,
			"cold create with a network made ahead: POST to the first output of a command",
			"the engine's create and start, on its bridge",
			milliseconds, lower, target{ratio, 0.7}},
		{rowEgressSpare,
			"cold create with an egress sidecar made ahead: POST to the first output of a command",
			"the engine's create and start, on its bridge",
			milliseconds, lower, target{ratio, 0.8}},
		{rowDeleteSpare, "DELETE of a sandbox whose network was made ahead until nothing is left but the record",
			"the engine's forced removal",
			milliseconds, lower, target{ratio, 1.5}},
		{rowDelete, "DELETE until nothing is left but the record", "the engine's forced removal",
			milliseconds, lower, target{ratio, 1.2}},
		{rowPause, "pause, and resume to the next command's output",
			"the engine's pause and unpause",
			milliseconds, lower, target{ratio, 1.2}},
		{rowGet, "GET of a sandbox", "a handler that writes the same bytes, prebuilt",
			perSecond, higher, target{ratio, 0.6}},
		{rowList, "list of 20 among 10 000, by a state and a metadata filter",
			"a handler that writes the same bytes, prebuilt",
			perSecond, higher, target{ratio, 0.3}},
		{rowExpiry, "how late the end of each of 10 000 sandboxes is reported",
			"how late as many timers of the standard library are",
			milliseconds, lower, target{tail, 500}},
		{rowFirstExpiry, "how late a single sandbox is Terminated, its container gone",
			"the engine's forced removal",
			milliseconds, lower, target{difference, 50}},
		{rowGetBusy, "GET of a sandbox while 50 others are created",
			"a handler that writes the same bytes while the engine makes 50 containers",
			milliseconds, lower, target{tail, 50}},
		{rowCrowd, "200 creates at once: from the first request until each runs",
			"the engine's create and start of as many, 16 at once",
			milliseconds, lower, target{ratio, 1.25}},
		{rowService, "resident memory of the service, with these 200 running",
			"a minimal net/http program, idle",
			mebibytes, lower, target{ours, 150}},
		{rowRestart,
			"SIGKILL of the service with these 200: from its start until all are listed and one runs a command", "a minimal server's start, and the engine asked for the state of each",
			milliseconds, lower, target{ours, 2000}},
		{rowCreateLocal, "cold create on the local engine with crun: POST to the first output of a command",
			"Docker's create and start, on its bridge",
			milliseconds, lower, target{ours, 30}},
		{rowCreateLocalTail, "the slowest of these creates",
			"Docker's create and start, on its bridge",
			milliseconds, lower, target{tail, 60}},
		{rowCreateLocalRatio, "these creates as a part of Docker's",
			"Docker's create and start, on its bridge",
			milliseconds, lower, target{ratio, 0.11}},
		{rowCreateLocalRunc, "cold create on the local engine with runc",
			"Docker's create and start, on its bridge",
			milliseconds, lower, target{ours, 75}},
		{rowCreateLocalRunsc, "cold create on the local engine with runsc (gVisor)",
			"Docker's create and start, on its bridge",
			milliseconds, lower, target{ours, 230}},
		{rowDeleteLocal, "DELETE on the local engine until nothing is left but the record", "Docker's forced removal",
			milliseconds, lower, target{ours, 15}},
		{rowPauseLocal, "pause on the local engine, and resume to the next command's output",
			"Docker's pause and unpause",
			milliseconds, lower, target{ours, 5}},
		{rowCrowdLocal, "100 creates at once on the local engine: how many a second until all run",
			"Docker's create and start of as many, 16 at once",
			perSecond, higher, target{ours, 30}},
		{rowE2BCreate, "cold create through E2B's API, on the local engine: POST to the first output of a command",
			"the same through the service's own API",
			milliseconds, lower, target{ratio, 1.2}},
		{rowE2BList, "list of 1000 running sandboxes through E2B's API, in pages of 100, each seen once",
			"a list of as many through the service's own API, in one page",
			milliseconds, lower, target{ours, 100}},
		{rowLeague, "a sandbox of the npm package @computesdk/e2b, from `create` until its first `runCommand` has ended, one after another, " +
			"as METHODOLOGY.md of computesdk/benchmarks has it (time to interactive, sequential), with `echo` in place of `node -v`",
			"the same through the service's own API, without a client library",
			milliseconds, lower, target{ours, 100}},
		{rowLeagueStaggered, "the same of each of 100 that are begun 200 ms apart (staggered)",
			"the same through the service's own API, without a client library",
			milliseconds, lower, target{ours, 150}},
		{rowLeagueBurst, "the same of each of 100 that are begun at once (burst)",
			"the same through the service's own API, without a client library",
			milliseconds, lower, target{ours, 4000}},
		{rowWaits, "1500 commands that run at once in 50 sandboxes, through the service with 50 requests a second: the latest report of an end",
			"a process of the same command line, waited for directly",
			milliseconds, lower, target{tail, 250}}, // the worst of its few rounds
		{rowSnapshotClean, "snapshot of a running sandbox that has written nothing since the last one, until Ready",
			"`cp -a` and `sync` of an empty directory",
			milliseconds, lower, target{ours, 5}},
		{rowSnapshotSmall, "the same with 1 MiB written since", "`cp -a` and `sync` of the same file",
			milliseconds, lower, target{ours, 20}},
		{rowSnapshotSmallFrozen, "for how long the sandbox's processes stand still for it", "`cp -a` and `sync` of the same file",
			milliseconds, lower, target{ours, 5}},
		{rowSnapshotLarge, "snapshot with 100 MiB in 10 000 files written since, until Ready", "`cp -a` and `sync` of the same files",
			milliseconds, lower, target{ours, 200}},
		{rowSnapshotLargeFrozen, "for how long the sandbox's processes stand still for it", "`cp -a` and `sync` of the same files",
			milliseconds, lower, target{ours, 10}},
		{rowRollback, "rollback of a running sandbox: POST to the first output of a command",
			"a cold create of the same sandbox",
			milliseconds, lower, target{ours, 25}},
		{rowMemorySnapshot, "snapshot of the memory of a running sandbox with runsc (gVisor) and 64 MiB in /dev/shm, until Ready",
			"`cp -a` and `sync` of a file of 64 MiB",
			milliseconds, lower, target{ours, 100}},
		{rowMemoryRollback, "rollback of that sandbox to it: POST to the first output of a command",
			"a cold create of the same sandbox",
			milliseconds, lower, target{ours, 250}},
		{rowFork, "fork of a running sandbox into ten: POST until a command in each has printed",
			"ten cold creates at once",
			milliseconds, lower, target{ours, 300}},
		{rowTrajectory, "100 commands of an agent (edits, tests of 0.1 s, searches, packages), a snapshot after each",
			"the same in a sandbox without snapshots",
			milliseconds, lower, target{ratio, 1.05}},
		{rowWake, "a command in a sandbox that sleeps, by its published port, until it has ended",
			"the same in a sandbox that is awake",
			milliseconds, lower, target{tailDifference, 5}},
		{rowPullLocal, "pull of the base image, in four layers, from a registry in the same process, by the local engine",
			"`docker pull` of the same",
			milliseconds, lower, target{ratio, 0.7}},
		{rowIdleLocal, "resident memory of service and keeper for each of 500 idle sandboxes",
			"a minimal net/http program, idle",
			mebibytes, lower, target{ours, 1}},
		{rowBusyLocal, "a command in a random one of these 500",
			"the same in a sandbox that is alone",
			milliseconds, lower, target{ratio, 2}},
		{rowSleepLocal, "processor time of service and keeper while these 500 sleep, of one core",
			"the same before they are created",
			percent, lower, target{difference, 0.1}},
		{rowPool,
			"100 sandboxes of a warm Pool, as one BatchSandbox, until Running, on played nodes and an etcd that does not sync to the disk",
			"as many puts into etcd as the API server is written to for it",
			milliseconds, lower, target{ours, 300}},
		{rowIngressOne, "GET through the ingress, one client",
			"the same through a bare `httputil.ReverseProxy`",
			perSecond, higher, target{ratio, 0.9}},
		{rowIngressMany, "GET through the ingress, 16 clients",
			"the same through a bare `httputil.ReverseProxy`",
			perSecond, higher, target{ratio, 0.9}},
		{rowIngressDownload, "1 GiB downloaded through the ingress",
			"the same through a bare `httputil.ReverseProxy`",
			mebiPerSec, higher, target{ratio, 0.9}},
		{rowIngressMemory, "resident memory of the ingress during that download, at its highest",
			"a bare `httputil.ReverseProxy` during the same",
			mebibytes, lower, target{ours, 40}},
		{rowEgressDNS,
			"answer for an allowed name, through the egress sidecar, its address reachable",
			"the same name server asked directly",
			milliseconds, lower, target{difference, 1}},
		{rowEgressNames, "answers for allowed names, 64 asked at once, none lost",
			"the same name server asked directly",
			perSecond, higher, target{ours, 1000}},
		{rowEgressPacket, "round trips of 64 bytes on a connection that a policy allows",
			"the same from a container without a sidecar",
			perSecond, higher, target{ratio, 0.9}},
		{rowEgressStream, "bytes sent on a connection that a policy allows",
			"the same from a container without a sidecar",
			mebiPerSec, higher, target{ratio, 0.9}},
		{rowEgressChange,
			"a change of the policy until it holds, for open connections too, the slower of both directions", "GET of the policy",
			milliseconds, lower, target{tail, 100}},
		{rowEgressChangeMany, "the same while the addresses of 8192 names are known",
			"GET of the policy",
			milliseconds, lower, target{tail, 100}},
		{rowEgressMemory, "resident memory of the sidecar (process 1 and daemon), after 3000 names",
			"a minimal net/http program, idle",
			mebibytes, lower, target{ours, 20}},
		{rowEgressCPU, "processor time of the sidecar, idle, of one core",
			"a minimal net/http program, idle",
			percent, lower, target{ours, 0.5}},
	}
}
