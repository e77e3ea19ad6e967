// Package hostpaths decides which paths of the host a sandbox may have, and mounts what was decided
// about, whatever a sandbox puts there meanwhile.
package hostpaths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// brokenRule is the rule of [lifecycle.HostPaths] that a path breaks once symbolic links are
// followed.
type brokenRule string

func (r brokenRule) Error() string { return string(r) }

// errLeadsOut is a path that leaves the directory that it belongs below.
var errLeadsOut = errors.New("leads out")

// Paths are the paths of the host that volumes show. The zero value permits all that the rules of
// [lifecycle.HostPaths] do, and pins none.
type Paths struct {
	rules lifecycle.HostPaths
	pins  string // the directory in which paths are pinned; empty where they cannot be
	log   zerolog.Logger
}

// New follows the rules, with what the service and the engine keep for themselves, which is
// own, under every name that it has. It pins paths in the directory where that is possible.
func New(rules lifecycle.HostPaths, own []string, directory string, log zerolog.Logger) Paths {
	for _, path := range own {
		rules.Never = append(rules.Never, path)
		if real := realName(path); real != path {
			rules.Never = append(rules.Never, real)
		}
	}
	p := Paths{rules: rules, log: log}
	if directory == "" {
		return p
	}
	pins, err := preparePins(directory)
	if err != nil {
		log.Warn().Err(err).Msg("host paths cannot be pinned: a process that can write to a directory above one could exchange it while a sandbox is started")
		return p
	}
	p.pins = pins
	return p
}

// Pinned reports whether paths are pinned.
func (p Paths) Pinned() bool { return p.pins != "" }

// CheckVolumes refuses volumes that break a rule as they are written.
func (p Paths) CheckVolumes(volumes []lifecycle.Volume, role lifecycle.Role) error {
	return p.rules.CheckVolumes(volumes, role)
}

// realName follows the symbolic links on the way to a path, which need not exist.
func realName(path string) string {
	for at, rest := path, ""; ; at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == "/" {
			return path
		}
	}
}

// Mount returns where a volume comes from, and refuses what breaks a rule. The rules decide before
// the disk is asked about a path, so that a refusal does not show what there is. The mount has the
// path with its symbolic links followed. An error is an Error of KindInvalid that names the volume.
func (p Paths) Mount(i int, v lifecycle.Volume) (engine.Mount, error) {
	mount := engine.Mount{Target: v.MountPath, ReadOnly: v.ReadOnly, Volume: v.ClaimName}
	if v.ClaimName != "" {
		mount.SubPath = v.SubPath
		return mount, nil
	}
	refuse := func(rule string) (engine.Mount, error) {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].host.path: %.128q %s", i, v.HostPath, rule)
	}
	if rule := p.rules.Broken(filepath.Join(v.HostPath, v.SubPath)); rule != "" {
		return refuse(rule)
	}
	var broken brokenRule
	base, err := followLinks(v.HostPath, p.passes)
	switch {
	case errors.As(err, &broken):
		return refuse(string(broken))
	case err != nil:
		return refuse("does not exist on the host, or cannot be read")
	}
	resolved, err := followLinks(filepath.Join(base, v.SubPath), func(path string) error {
		if !overlap(path, base) {
			return errLeadsOut
		}
		return p.passes(path)
	})
	switch {
	case errors.As(err, &broken):
		return refuse(string(broken))
	case errors.Is(err, errLeadsOut), err == nil && !lifecycle.PathWithin(resolved, base):
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].subPath: %.128q leads out of %.128q", i, v.SubPath, v.HostPath)
	case err != nil:
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].subPath: %.128q does not exist below %.128q, or cannot be read", i, v.SubPath, v.HostPath)
	}
	if rule := p.rules.Broken(resolved); rule != "" {
		return refuse(rule)
	}
	if rule, err := p.brokenByMounts(resolved); err != nil || rule != "" {
		if err != nil {
			return engine.Mount{}, fmt.Errorf("volumes[%d].host.path: %w", i, err)
		}
		return refuse(rule)
	}
	if info, err := os.Lstat(resolved); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return refuse("must be a directory or a regular file")
	}
	mount.HostPath = resolved
	return mount, nil
}

// passes returns the rule that forbids even to look at a path, as a brokenRule.
func (p Paths) passes(path string) error {
	if rule := p.rules.BrokenOnTheWay(path); rule != "" {
		return brokenRule(rule)
	}
	return nil
}

// followLinks returns the path with every symbolic link on it followed. It asks passes about each
// step before it looks at the disk, and returns its error.
func followLinks(path string, passes func(string) error) (string, error) {
	const mostLinks = 40 // as the kernel has it
	resolved, rest := "/", strings.Split(strings.Trim(path, "/"), "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(resolved, rest[0]) // also goes up for ".."
		rest = rest[1:]
		if err := passes(next); err != nil {
			return "", err
		}
		info, err := os.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			resolved = next
			continue
		}
		if links++; links > mostLinks {
			return "", fmt.Errorf("%s: more than %d symbolic links", path, mostLinks)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			resolved = "/"
		}
		rest = slices.Concat(strings.FieldsFunc(target, func(r rune) bool { return r == '/' }), rest)
	}
	return resolved, nil
}

func overlap(a, b string) bool { return lifecycle.PathWithin(a, b) || lifecycle.PathWithin(b, a) }
