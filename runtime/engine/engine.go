// Package engine is the contract between the lifecycle service and whatever really runs a sandbox:
// a container engine, an OCI runtime.
//
// It is about containers, images and volumes. Sandboxes, states and expiry are the caller's.
package engine

import (
	"context"
	"io"
	"time"
)

// Engine runs containers. Every method may be called from several goroutines at once.
//
// Errors wrap one of the sentinels of this package when the cause is known, so that callers decide
// with errors.Is. Any method may return [ErrUnavailable].
type Engine interface {
	Images
	Volumes
	Containers

	// Info describes the engine and proves that it answers.
	Info(ctx context.Context) (Info, error)

	// Close releases the connection to the engine. Containers are not touched.
	Close() error
}

// Images gets images, and directories of images.
type Images interface {
	// EnsureImage returns the id of the image named ref and pulls it first when the engine does not
	// have it. Calls of one [Caller] for the same missing image share one pull. progress, if not
	// nil, is called with short sentences on how the pull goes. It returns [ErrImage] with the
	// registry's own message when the image cannot be had.
	EnsureImage(ctx context.Context, ref string, auth *RegistryAuth, progress func(string)) (imageID string, err error)

	// FindImage returns the image named ref, or with that id, that the engine has; its Names are
	// full, and may have digests among them. InUse is not looked up. It returns [ErrImage] when the
	// engine does not have it. No registry is asked.
	FindImage(ctx context.Context, ref string) (Image, error)

	// ProveAccess asks the registry of ref for the image's manifest, with these credentials, and
	// downloads nothing else. It returns [ErrImage] with the registry's own message when the
	// registry refuses.
	ProveAccess(ctx context.Context, ref string, auth *RegistryAuth) error

	// EnsureDirectory makes what the image holds at path available under the name, to be mounted as
	// [Mount].Directory, and returns when it is complete. A directory that is complete already is
	// left alone.
	EnsureDirectory(ctx context.Context, name, imageID, path string, labels map[string]string) error
}

// Volumes keeps named volumes, which outlive containers.
type Volumes interface {
	// MakeVolume makes the named volume, with these labels, unless there is one, and returns the
	// labels that it has. Of several calls at once one makes it.
	MakeVolume(ctx context.Context, name string, labels map[string]string) (map[string]string, error)

	// VolumeLabels returns the labels of the named volume. It returns [ErrNotFound].
	VolumeLabels(ctx context.Context, name string) (map[string]string, error)
}

// Containers runs containers, named by id or by name.
type Containers interface {
	// Create makes a container from the spec and does not start it. It returns [ErrExists] when the
	// name is taken, [ErrImage] when the image is gone and [ErrInvalid] when the engine refuses the
	// spec.
	Create(ctx context.Context, spec ContainerSpec) (id string, err error)

	// Start starts a created container; starting a running container succeeds. A container that is
	// [StatusStopped], or has ended and keeps its files ([ContainerSpec].KeepFiles), is started
	// again on what it has written; when that fails, its files are as they were. It returns
	// [ErrNotFound], [ErrInvalid] when the engine cannot run the spec (a limit or a device it does
	// not have) and [ErrNetwork] when the network could not be set up.
	Start(ctx context.Context, id string) error

	// Freeze stops the container's processes from running, memory retained. Freezing a frozen
	// container succeeds. It returns [ErrNotFound] or [ErrNotRunning].
	Freeze(ctx context.Context, id string) error

	// Thaw lets a frozen container run again. Thawing a running container succeeds. It returns
	// [ErrNotFound] or [ErrNotRunning].
	Thaw(ctx context.Context, id string) error

	// Stop asks the container's first process to end with SIGTERM, and kills it after grace.
	// Stopping a container that does not run, or is gone, succeeds.
	Stop(ctx context.Context, id string, grace time.Duration) error

	// Remove ends the container and removes it with its anonymous volumes. Removing a missing
	// container succeeds.
	Remove(ctx context.Context, id string) error

	// Inspect returns the container. It returns [ErrNotFound].
	Inspect(ctx context.Context, id string) (Container, error)

	// List returns every container, running or not, that carries all the labels, with its ID, Name,
	// Labels, Status and Ports; the rest takes an Inspect.
	List(ctx context.Context, labels map[string]string) ([]Container, error)

	// Logs returns the last lines that the container wrote to its standard output and error,
	// combined, at most tail lines and [MaxLogsBytes].
	Logs(ctx context.Context, id string, tail int) (string, error)

	// OpenLog returns what the container wrote to its standard output and error, combined, byte for
	// byte. Reading it may take as long as it takes, and ctx bounds it; the caller closes it. With
	// Follow it ends when the container does. It returns [ErrNotFound].
	OpenLog(ctx context.Context, id string, options LogOptions) (io.ReadCloser, error)

	// Watch calls handle, one call at a time, for what happens to containers that carry all the
	// labels, until ctx ends or the engine closes the connection. It calls ready once the
	// subscription stands: what happens after that is not missed, and may be reported twice. handle
	// must be quick.
	Watch(ctx context.Context, labels map[string]string, ready func(), handle func(Event)) error
}

// LogOptions selects a part of a container's log. The engine keeps a part of it, see
// [ContainerSpec].LogBytes.
type LogOptions struct {
	Tail   int       // how many of the last lines to begin with; negative means all
	Since  time.Time // leaves out what was written before; zero leaves out nothing
	Follow bool      // go on with what is written
}

// Info describes an engine.
type Info struct {
	Name          string // the product, e.g. "docker"
	Version       string // version of the engine
	CgroupVersion string // "1" or "2"
	CPUs          int    // processors of the engine's host
	MemoryBytes   int64  // memory of the engine's host
	AppArmor      bool   // profiles of AppArmor can be had
	Seccomp       bool   // profiles of seccomp can be had
	// OwnKernel is whether containers have a kernel of their own, such as gVisor's: it ends when it
	// is refused a thread, shows its processes nothing of what limits it, and is not in the host's
	// network.
	OwnKernel bool
	// Connected is whether containers with [NetworkOwn] can connect to one another's ports,
	// published or not.
	Connected bool
	// Elsewhere is whether the engine runs on another machine than this process, which sees neither
	// its processes nor its network then.
	Elsewhere bool
	// OwnPaths are the paths of the engine's host that give control of the engine to a process that
	// can write to them: its sockets, and the directories that it and what it is made of keep their
	// data in. Absolute and clean; not all of them need exist.
	OwnPaths []string
}

// RegistryAuth is a user's name and password at an image registry. It is never logged and never
// stored.
type RegistryAuth struct {
	Username string
	Password string
}

// ContainerSpec says what to run and within which limits. The zero value of a limit means none.
type ContainerSpec struct {
	Name    string
	ImageID string
	// Snapshot, if not empty, is the name of a snapshot of the same image that the container begins
	// with. Create returns [ErrNoSnapshot] when there is none, and [ErrInvalid] where the engine is
	// not [Snapshots].
	Snapshot string `json:",omitempty"`
	Labels   map[string]string
	// Runtime names what the container is run with, in the engine's own words: an OCI runtime of
	// its configuration, such as runsc, or the path of one where the engine takes paths. Empty
	// means the engine's default. Create, or Start at the latest, returns [ErrInvalid] for one that
	// it does not have.
	Runtime string
	// Entrypoint replaces the image's entrypoint and command.
	Entrypoint []string
	// Env is added to the image's environment.
	Env map[string]string
	// StopSignalVariable, if not empty, is a variable of the environment that gets the image's
	// STOPSIGNAL as it is written, if it has one: Stop sends SIGTERM all the same.
	StopSignalVariable string
	Mounts             []Mount
	// Network is how the container is connected. Join names a container instead, whose network
	// namespace this one shares: its addresses, its published ports, its name servers. The named
	// container must run when this one is started.
	Network Network
	Join    string
	// Publish lists the TCP ports of the container that the engine publishes on a free port of the
	// host. Only with [NetworkOwn].
	Publish []int
	// PublishIP is the host's address that ports are published on; empty means all.
	PublishIP string
	Resources Resources
	// ShowLimits asks that the container's programs find its limits of processors and memory in the
	// kernel's files, where these show the machine. An engine that cannot do so ignores it, and one
	// may do so for every container.
	ShowLimits bool `json:",omitempty"`
	Security   Security
	// HostUsers makes the container's root that of the engine's host, as root, also where the
	// engine gives containers user namespaces: for programs of ours that change a network
	// namespace.
	HostUsers bool
	// Sysctls are kernel parameters of the container's namespaces.
	Sysctls map[string]string
	// LogBytes is how much the engine keeps at least of what the container's processes print; it
	// never keeps more than twice as much, and drops the oldest first. 0 means [DefaultLogBytes].
	LogBytes int64
	// KeepFiles asks that what the container writes to its root file system outlives a reboot of
	// the engine's host, which then leaves the container [StatusStopped]. An engine that cannot do
	// so, or is configured not to, ignores it. A host path that is mounted again must lead through
	// no symbolic link.
	KeepFiles bool
}

// Network is how a container is connected.
type Network string

// The networks.
const (
	// NetworkOwn gives the container a network namespace of its own, connected to the outside.
	NetworkOwn Network = ""
	// NetworkHost shares the network of the engine's host: its addresses, its ports, its loopback
	// interface.
	NetworkHost Network = "host"
	// NetworkNone gives the container a loopback interface of its own and nothing else.
	NetworkNone Network = "none"
)

// MaxLogsBytes is the most that Logs returns.
const MaxLogsBytes = 64 << 10

// DefaultLogBytes is how much of a container's log is kept by default.
const DefaultLogBytes = 10 << 20

// Resources are a container's limits; zero means no limit.
type Resources struct {
	NanoCPUs    int64 // billionths of a core
	MemoryBytes int64
	PIDs        int64
	GPUs        int // how many of the host's GPUs, any of them; [AllGPUs] means every one
	// SharedMemoryBytes is the size of /dev/shm, whose files count as memory of the container. Zero
	// means [DefaultSharedMemoryBytes].
	SharedMemoryBytes int64
}

// DefaultSharedMemoryBytes is the size of /dev/shm that container engines give.
const DefaultSharedMemoryBytes = 64 << 20

// AllGPUs is the number of GPUs of a container that has every one of its host.
const AllGPUs = -1

// Security narrows what a container's processes may do.
type Security struct {
	DropCapabilities []string // names without the CAP_ prefix, or ALL
	AddCapabilities  []string // on top of what is left
	NoNewPrivileges  bool
	AppArmorProfile  string // empty means the engine's default
	// SeccompProfile is empty for the engine's default, "unconfined", or the profile itself as
	// JSON.
	SeccompProfile string
}

// Mount puts a directory or a volume into a container. Exactly one of HostPath, Volume and
// Directory is set.
type Mount struct {
	Directory string `json:"Folder"` // name given to [Images].EnsureDirectory; always read-only
	HostPath  string // absolute path on the engine's host; must exist
	Volume    string // name of a volume; created when it does not exist
	SubPath   string // directory inside the volume, relative; must exist. Only with Volume
	Target    string // absolute path in the container
	ReadOnly  bool
}

// Status is what the engine says a container does.
type Status string

// The states of a container.
const (
	StatusCreated Status = "created" // made, not started yet
	StatusRunning Status = "running"
	StatusFrozen  Status = "frozen"
	StatusExited  Status = "exited" // ended, or dead
	// StatusStopped is a container whose processes have ended with the engine's host, and whose
	// files are kept: Start starts it again.
	StatusStopped Status = "stopped"
	// StatusRemoving is a container that is being removed: how it ended says nothing.
	StatusRemoving Status = "removing"
)

// Container is the engine's description of one container.
type Container struct {
	ID     string
	Name   string
	Labels map[string]string
	Status Status
	// ExitCode and OOMKilled are meaningful when Status is StatusExited.
	ExitCode  int
	OOMKilled bool
	// FilesLost says why the files of a container with [ContainerSpec].KeepFiles could not be kept
	// when the engine's host was started again. It is StatusExited then.
	FilesLost string
	// Ports maps a published TCP port of the container to the host's port.
	Ports map[int]int
	// Error is the engine's own word on why the container could not start.
	Error string
	// Restored is whether the present start has given the container the processes of a snapshot.
	// RestoreError says why a start could not, which has begun on the snapshot's files alone then.
	Restored     bool
	RestoreError string
}

// EventType says what happened to a container.
type EventType string

// The types of events of a container.
const (
	EventStarted EventType = "started"
	EventExited  EventType = "exited"
	EventFrozen  EventType = "frozen"
	EventThawed  EventType = "thawed"
	EventRemoved EventType = "removed"
)

// Event is something that happened to a container. It is a hint to look: Inspect has the facts.
type Event struct {
	Type   EventType
	Labels map[string]string // of the container
}
