package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// brokenRule is the rule of [lifecycle.HostPaths] that a path breaks once symbolic links are
// followed.
type brokenRule string

func (r brokenRule) Error() string { return string(r) }

// errLeadsOut is a path that leaves the directory that it belongs below.
var errLeadsOut = errors.New("leads out")

// hostPathRules are the configured ones, with what the service and the engine keep for themselves
// under every name that it has.
func hostPathRules(options Options, info engine.Info) lifecycle.HostPaths {
	rules := lifecycle.HostPaths{None: options.NoHostVolumes, Allowed: options.AllowedHostPaths}
	for _, path := range slices.Concat(info.OwnPaths, options.OwnPaths) {
		rules.Never = append(rules.Never, path)
		if real := realName(path); real != path {
			rules.Never = append(rules.Never, real)
		}
	}
	return rules
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

// mount returns where a volume comes from, and refuses what breaks a rule. Whether a path may be
// looked at is decided before the disk is asked about it, so that a refusal does not show what
// there is. What is mounted is the path with its symbolic links followed. It returns an Error of
// KindInvalid that names the volume.
func (c *Containers) mount(i int, v lifecycle.Volume) (engine.Mount, error) {
	mount := engine.Mount{Target: v.MountPath, ReadOnly: v.ReadOnly, Volume: v.ClaimName}
	if v.ClaimName != "" {
		mount.SubPath = v.SubPath
		return mount, nil
	}
	refuse := func(rule string) (engine.Mount, error) {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].host.path: %.128q %s", i, v.HostPath, rule)
	}
	if rule := c.hostPaths.Broken(filepath.Join(v.HostPath, v.SubPath)); rule != "" {
		return refuse(rule)
	}
	var broken brokenRule
	base, err := followLinks(v.HostPath, c.passes)
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
		return c.passes(path)
	})
	switch {
	case errors.As(err, &broken):
		return refuse(string(broken))
	case errors.Is(err, errLeadsOut), err == nil && !lifecycle.PathWithin(resolved, base):
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].subPath: %.128q leads out of %.128q", i, v.SubPath, v.HostPath)
	case err != nil:
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].subPath: %.128q does not exist below %.128q, or cannot be read", i, v.SubPath, v.HostPath)
	}
	if rule := c.hostPaths.Broken(resolved); rule != "" {
		return refuse(rule)
	}
	if rule, err := c.brokenByMounts(resolved); err != nil || rule != "" {
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
func (c *Containers) passes(path string) error {
	if rule := c.hostPaths.BrokenOnTheWay(path); rule != "" {
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
