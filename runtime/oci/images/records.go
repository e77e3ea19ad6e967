package images

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/oci/internal/placement"
)

// directories is the store's directory, with what lies in it:
//
//	layers/HEX/tree        a layer, by the hex digits of its diff id
//	layers/HEX/layer.json  its record
//	images/HEX.json        the configuration of an image, by the hex digits of its id; complete when its digest is the id
//	layers/HEX/implied.json the directories that the layer has no entry for, if there are any
//	patches/HEX            what an image has above its layers, by the digits of its id; see patch.go
//	names/HEX.json         a name, by its SHA-256
//	making/RANDOM          what is being made; removed when the store opens
//	trash/RANDOM           what is being removed
type directories string

const (
	layersDirectory  = "layers"
	imagesDirectory  = "images"
	namesDirectory   = "names"
	patchesDirectory = "patches"
	makingDirectory  = "making"
	trashDirectory   = "trash"
	treeDirectory    = "tree"
	layerRecord      = "layer.json"
	impliedRecord    = "implied.json"
	recordSuffix     = ".json"
)

// layer is a complete layer.
type layer struct {
	layerFile
	pins int       // pulls and loads that need it
	used time.Time // when the last of them ended
}

// layerFile is a layer's record.
type layerFile struct {
	Bytes   int64 `json:"bytes"`
	Opaque  bool  `json:"opaque,omitempty"`  // it hides the layers below it
	Implied bool  `json:"implied,omitempty"` // it has directories without an entry
	// Boot is the boot of the host that wrote the layer, until it is safe on the disk.
	Boot string `json:"boot,omitempty"`
}

// image is a complete image.
type image struct {
	id      string
	config  Config
	bytes   int64 // of its record, see recordBytes, and its patch
	patched bool
	layers  []string // diff ids, lowest first, no two the same
	created time.Time
	holds   int
	used    time.Time
}

// named is the record of a name.
type named struct {
	Name   string `json:"name"`
	Image  string `json:"image"`
	Loaded bool   `json:"loaded,omitempty"` // from an archive: no registry may have it
}

func (f directories) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

func (f directories) layer(diffID string) string { return f.path(layersDirectory, hexOf(diffID)) }

func (f directories) layerTree(diffID string) string {
	return f.path(layersDirectory, hexOf(diffID), treeDirectory)
}

func (f directories) image(id string) string { return f.path(imagesDirectory, hexOf(id)+recordSuffix) }

func (f directories) name(name string) string {
	sum := sha256.Sum256([]byte(name))
	return f.path(namesDirectory, hex.EncodeToString(sum[:])+recordSuffix)
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// temporary returns a new path in the directory.
func (f directories) temporary(directory string) string { return f.path(directory, rand.Text()) }

// load reads the directory. What was being made or removed goes to the trash, and so does what is
// damaged.
func (s *Store) load() error {
	for _, directory := range []string{layersDirectory, imagesDirectory, namesDirectory, patchesDirectory, makingDirectory, trashDirectory} {
		if err := placement.MakeSpread(s.path(directory), 0o700); err != nil {
			return err
		}
	}
	for _, load := range []func() error{s.discardMaking, s.loadLayers, s.loadImages, s.loadNames, s.loadPatches} {
		if err := load(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) discardMaking() error {
	return s.each(makingDirectory, func(entry fs.DirEntry) error {
		return os.Rename(s.path(makingDirectory, entry.Name()), s.temporary(trashDirectory))
	})
}

func (s *Store) loadLayers() error {
	return s.each(layersDirectory, func(entry fs.DirEntry) error {
		path := s.path(layersDirectory, entry.Name())
		var file layerFile
		err := readJSON(filepath.Join(path, layerRecord), &file)
		if err == nil && file.Boot != "" && file.Boot != s.boot {
			err = errors.New("the host stopped before it was safe on the disk")
		}
		if err != nil {
			s.log.Warn().Err(err).Str("layer", entry.Name()).Msg("removing a damaged layer of an image")
			return os.Rename(path, s.temporary(trashDirectory))
		}
		s.layers["sha256:"+entry.Name()] = &layer{layerFile: file, used: s.opened}
		s.bytes += file.Bytes
		if file.Boot != "" {
			s.syncSoon()
		}
		return nil
	})
}

func (s *Store) loadImages() error {
	return s.each(imagesDirectory, func(entry fs.DirEntry) error {
		path := s.path(imagesDirectory, entry.Name())
		i, err := s.readImage(path, "sha256:"+strings.TrimSuffix(entry.Name(), recordSuffix))
		if err != nil {
			s.log.Warn().Err(err).Str("image", entry.Name()).Msg("removing a damaged image")
			return os.Remove(path)
		}
		s.images[i.id] = i
		s.bytes += i.bytes
		return nil
	})
}

func (s *Store) readImage(path, id string) (*image, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if got := digestOf(raw); got != id {
		return nil, fmt.Errorf("the digest of its configuration is %s", got)
	}
	config, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	i := newImage(id, config, info.ModTime())
	i.used, i.bytes = s.opened, recordBytes(raw)
	for _, diffID := range i.layers {
		if s.layers[diffID] == nil {
			return nil, fmt.Errorf("layer %s is missing", diffID)
		}
	}
	return i, nil
}

func (s *Store) loadNames() error {
	return s.each(namesDirectory, func(entry fs.DirEntry) error {
		path := s.path(namesDirectory, entry.Name())
		var n named
		if err := readJSON(path, &n); err != nil || s.images[n.Image] == nil || s.name(n.Name) != path {
			s.log.Warn().Err(err).Str("name", n.Name).Msg("removing the name of a missing image")
			return os.Remove(path)
		}
		s.names[n.Name] = n
		return nil
	})
}

func (s *Store) each(directory string, handle func(fs.DirEntry) error) error {
	entries, err := os.ReadDir(s.path(directory))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := handle(entry); err != nil {
			return err
		}
	}
	return nil
}

// newImage makes the image of a configuration. A layer that comes again hides all of its earlier
// appearance, and overlayfs mounts no directory twice.
func newImage(id string, config *configFile, created time.Time) *image {
	i := &image{id: id, created: created, used: created, config: config.Config}
	for position, diffID := range config.RootFS.DiffIDs {
		if !slices.Contains(config.RootFS.DiffIDs[position+1:], diffID) {
			i.layers = append(i.layers, diffID.String())
		}
	}
	return i
}

// UnmarshalJSON reads what the configuration of an image says about containers.
func (c *Config) UnmarshalJSON(content []byte) error {
	var read struct {
		Env              []string
		Entrypoint, Cmd  words
		User, WorkingDir string
		StopSignal       string
		Labels           map[string]string
	}
	if err := json.Unmarshal(content, &read); err != nil {
		return err
	}
	*c = Config{Env: read.Env, Entrypoint: read.Entrypoint, Cmd: read.Cmd, User: read.User, WorkingDir: read.WorkingDir,
		StopSignal: read.StopSignal, Labels: read.Labels}
	return nil
}

// words are a list, or a string, which is a list of one, as Docker reads both.
type words []string

func (w *words) UnmarshalJSON(content []byte) error {
	var list []string
	err := json.Unmarshal(content, &list)
	if err != nil {
		list = []string{""}
		if json.Unmarshal(content, &list[0]) != nil {
			return err
		}
	}
	*w = list
	return nil
}

func (c Config) clone() Config {
	return Config{
		Env: slices.Clone(c.Env), Entrypoint: slices.Clone(c.Entrypoint), Cmd: slices.Clone(c.Cmd), User: c.User, WorkingDir: c.WorkingDir,
		StopSignal: c.StopSignal, Labels: maps.Clone(c.Labels),
	}
}

// entries is how many strings there are, each of which takes memory for as long as the image is
// here.
func (c Config) entries() int {
	return len(c.Env) + len(c.Entrypoint) + len(c.Cmd) + len(c.Labels)
}

// configFile is what is used of the configuration of an image. The rest may take many times its
// size in memory.
type configFile struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	RootFS       struct {
		DiffIDs []v1.Hash `json:"diff_ids"`
	} `json:"rootfs"`
	Config Config `json:"config"`
}

// recordBytes is what the record of an image counts for towards [Options].MaxBytes: blocks of the
// disk, since many small ones take as many.
func recordBytes(rawConfig []byte) int64 {
	const block = 4 << 10
	return (int64(len(rawConfig)) + block - 1) / block * block
}

// parseConfig reads and checks the configuration of an image.
func parseConfig(raw []byte) (*configFile, error) {
	var config configFile
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("the image's configuration is broken: %w", err)
	}
	if config.OS != "" && config.OS != "linux" {
		return nil, fmt.Errorf("%w: it is for %s", errNoImage, config.OS)
	}
	if err := checkLayers(len(config.RootFS.DiffIDs)); err != nil {
		return nil, err
	}
	if n := config.Config.entries(); n > maxConfigEntries {
		return nil, fmt.Errorf("the image's configuration has %d variables, arguments and labels, more than %d", n, maxConfigEntries)
	}
	for _, diffID := range config.RootFS.DiffIDs {
		if diffID.Algorithm != "sha256" {
			return nil, fmt.Errorf("diff id %s of a layer is not a SHA-256", diffID)
		}
	}
	return &config, nil
}

func checkLayers(n int) error {
	if n > maxLayers {
		return fmt.Errorf("the image has %d layers, more than %d", n, maxLayers)
	}
	return nil
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func readJSON(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

// writeJSON replaces a record in one step.
func (s *Store) writeJSON(path string, record any) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return s.writeFile(path, content)
}

func (s *Store) writeFile(path string, content []byte) error {
	temporary := s.temporary(makingDirectory)
	err := os.WriteFile(temporary, content, 0o600)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		return nil
	}
	if removeErr := os.Remove(temporary); !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}
