// Package images keeps images of containers on this host: it pulls them from registries or loads
// them from archives, and unpacks each layer once, into a directory that overlayfs mounts.
//
// Everything that a Store has written is complete or does not count: parts are made in a directory
// of their own and renamed when their digests have been checked. No operation waits for the disk; a
// [Store] syncs behind what it writes. Until then a layer carries the id of the boot that wrote it,
// and after a crash of the host it is removed.
package images

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/distribution/reference"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/pull"
	"sandbox.internal/runtime/engine/registries"
	"sandbox.internal/runtime/oci/images/unpack"
)

// Options configure a [Store].
type Options struct {
	Directory string              // absolute; made when it is missing, used by one Store at a time
	MaxBytes  int64               // bound of layers and configurations on the disk together; 0 means none. See [Store.Prune]
	Grace     time.Duration       // how long what is not used stays before Prune removes it
	Mirrors   map[string][]string // host of a registry, e.g. docker.io -> hosts that are asked before it
	Insecure  []string            // hosts of registries that may be asked over HTTP; localhost and 127.0.0.0/8 always may
	Internal  []string            // hosts of registries that may have internal addresses, whoever asks for an image; those of Insecure may, too
	// Never, if not nil, reports addresses that are not connected to, see [registries.Rules].
	Never  func(address netip.AddrPort, listed bool) bool
	InUse  func() []string // ids of the images that containers are made of; nil means none
	Keep   []string        // images that are never removed, as a request would name them
	Logger zerolog.Logger
}

// Failpoints of a Store.
const (
	UnpackedFailpoint  = "images.unpacked"  // a layer is unpacked, and not in its place
	LayeredFailpoint   = "images.layered"   // the layers of an image are in their places, and it has no record
	RecordedFailpoint  = "images.recorded"  // an image has its record, and no name
	ForgottenFailpoint = "images.forgotten" // the record of an image is removed, and its layers are in their places
	TrashedFailpoint   = "images.trashed"   // layers that nothing uses are in the trash
)

// Image is an image that is here.
type Image struct {
	ID      string    // sha256:... of its configuration, as Docker's image id
	Names   []string  // full, with registry and tag or digest
	Bytes   int64     // of its unpacked layers on the disk, about
	Created time.Time // when it came here
	Config  Config
	Layers  []string // absolute directories, lowest first, no two the same
}

// Config is what an image says about containers that are made from it.
type Config struct {
	Env        []string // NAME=value
	Entrypoint []string
	Cmd        []string
	User       string
	WorkingDir string
	StopSignal string // as it was written; empty for none
	Labels     map[string]string
}

// What the layers of one image may take together.
const (
	maxImageBytes   = 64 << 30
	maxImageEntries = 2_000_000
	maxLayers       = 500 // overlayfs mounts no more
)

// What its configuration may take, which stays in memory as well.
const (
	maxConfig        = 1 << 20 // bytes
	maxConfigEntries = 10_000  // variables, arguments and labels
)

// Store is a directory with images. It is safe for concurrent use.
type Store struct {
	directories
	maxBytes int64
	limits   imageLimits
	grace    time.Duration
	mirrors  map[string][]string
	insecure map[string]bool
	inUse    func() []string
	keep     map[string]bool // full names and ids
	log      zerolog.Logger

	boot      string // id of this boot of the host
	opened    time.Time
	rules     registries.Rules
	base      *http.Transport // to public hosts, and to what rules permit
	permitted *http.Transport // also to internal hosts
	pulls     *pull.Group
	turns     *turns // of layers that are made at the moment
	wideTurns *turns // of those of them with large windows
	asks      *turns // of endpoints that are asked for a manifest and a configuration
	pace      pace

	pruning chan struct{} // full while a prune is under way

	ctx     context.Context // ends with the Store
	stop    context.CancelFunc
	unsaved chan struct{} // something was written since the last sync
	working sync.WaitGroup

	mu     sync.Mutex
	images map[string]*image // by id
	names  map[string]named
	layers map[string]*layer // by diff id; complete ones
	making map[origin]*making
	bytes  int64 // of layers, complete and being made, and of the records of images
}

// imageLimits are replaced by tests.
type imageLimits struct{ bytes, entries int64 }

// Open opens the store and removes what was left half made. The directory must belong to root
// alone.
func Open(o Options) (*Store, error) {
	if !filepath.IsAbs(o.Directory) {
		return nil, fmt.Errorf("open images: directory %q must be absolute", o.Directory)
	}
	if o.MaxBytes < 0 || o.Grace < 0 {
		return nil, errors.New("open images: the bound of bytes and the time of grace must not be negative")
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		directories: directories(filepath.Clean(o.Directory)),
		maxBytes:    o.MaxBytes,
		limits:      imageLimits{bytes: maxImageBytes, entries: maxImageEntries},
		grace:       o.Grace,
		mirrors:     o.Mirrors,
		insecure:    map[string]bool{},
		inUse:       o.InUse,
		keep:        map[string]bool{},
		log:         o.Logger,
		boot:        boot,
		opened:      time.Now(),
		pulls:       pull.NewGroup(),
		turns:       newTurns(layersAtOnce, layersOfHost),
		wideTurns:   newTurns(wideLayersAtOnce, wideLayersOfHost),
		asks:        newTurns(asksAtOnce, asksOfHost),
		pace:        defaultPace,
		pruning:     make(chan struct{}, 1),
		ctx:         ctx,
		stop:        stop,
		unsaved:     make(chan struct{}, 1),
		images:      map[string]*image{},
		names:       map[string]named{},
		layers:      map[string]*layer{},
		making:      map[origin]*making{},
	}
	s.rules = registries.Rules{Listed: slices.Concat(o.Internal, o.Insecure), Never: o.Never}
	s.base, s.permitted = s.newTransport(false), s.newTransport(true)
	if s.maxBytes == 0 {
		s.maxBytes = math.MaxInt64
	}
	if s.inUse == nil {
		s.inUse = func() []string { return nil }
	}
	for _, host := range o.Insecure {
		s.insecure[host] = true
	}
	for _, ref := range o.Keep {
		if registries.IsID(ref) {
			s.keep[ref] = true
			continue
		}
		name, err := reference.ParseDockerRef(ref)
		if err != nil {
			stop()
			return nil, fmt.Errorf("open images: image %q: %w", ref, err)
		}
		s.keep[name.String()] = true
	}
	if err := s.load(); err != nil {
		stop()
		return nil, fmt.Errorf("open images: %w", err)
	}
	s.working.Go(s.emptyTrash)
	s.working.Go(s.syncBehind)
	return s, nil
}

// Close cancels pulls, loads and prunes that are under way, waits for their end, and makes what was
// written safe on the disk. The error is that of the disk: images may then be missing after the
// host's next start.
func (s *Store) Close() error {
	s.mu.Lock()
	s.stop() // no Load and no prune begins after this
	s.mu.Unlock()
	s.pulls.Close()
	s.working.Wait()
	s.base.CloseIdleConnections()
	s.permitted.CloseIdleConnections()
	if err := s.syncAtEnd(); err != nil {
		return fmt.Errorf("close images: %w", err)
	}
	return nil
}

// Hold keeps the image from being removed until release is called. It returns [engine.ErrImage]
// when the image is not here.
func (s *Store) Hold(id string) (held Image, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.images[id]
	if !ok {
		return Image{}, nil, noSuchImage(id)
	}
	i.holds++
	return s.describe(i), sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		i.holds--
		i.used = time.Now()
	}), nil
}

// List returns the images that are here, newest first.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Image, 0, len(s.images))
	for _, i := range s.images {
		list = append(list, s.describe(i))
	}
	slices.SortFunc(list, func(a, b Image) int {
		if order := b.Created.Compare(a.Created); order != 0 {
			return order
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

// describe needs s.mu.
func (s *Store) describe(i *image) Image {
	described := Image{ID: i.id, Created: i.created, Config: i.config.clone()}
	for name, n := range s.names {
		if n.Image == i.id {
			described.Names = append(described.Names, name)
		}
	}
	slices.Sort(described.Names)
	for _, diffID := range i.layers {
		described.Bytes += s.layers[diffID].Bytes
	}
	for _, diffID := range s.visible(i.layers) {
		described.Layers = append(described.Layers, s.layerTree(diffID))
	}
	if i.patched {
		described.Layers = append(described.Layers, s.patchTree(i.id))
	}
	return described
}

func (s *Store) newLimits() *unpack.Limits {
	return &unpack.Limits{Bytes: s.limits.bytes, Entries: s.limits.entries}
}

// hostFailures are what this host fails with, whatever the image is.
var hostFailures = []error{
	unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE,
}

// describeError wraps what a pull or load failed with in the error of the contract. An end of its
// context and failures of this host stay what they are.
func describeError(ctx context.Context, op string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", op, ctx.Err())
	case errors.Is(err, engine.ErrImage), slices.ContainsFunc(hostFailures, func(failure error) bool { return errors.Is(err, failure) }):
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %w: %s", op, engine.ErrImage, oneLine(err.Error()))
}

// oneLine keeps words of foreign origin on one line, and short.
func oneLine(text string) string { return printable(text, 2000) }

// printable replaces what is no text, such as control characters, and cuts it after limit bytes.
func printable(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}

func noSuchImage(ref string) error {
	return fmt.Errorf("%w: No such image: %s", engine.ErrImage, ref)
}

func bootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(content)), err
}
