package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"

	"sandbox.internal/runtime/engine"
)

// Docker and runc follow symbolic links of an image where they mount something, and mount the
// kernel's file systems before: a link could lead a volume over the sandbox's daemon, over /dev or
// over /sys. So the engine is asked what the created container has there, which nothing changes
// before it is started.

// kernelDirectories are where the kernel's file systems are mounted in every container. Docker puts
// directories there, whatever the image has.
var kernelDirectories = []string{"/proc", "/dev", "/sys"}

// maxPlain bounds how many paths of images are remembered.
const maxPlain = 4096

// plainPath is a path of an image that leads through no symbolic link.
type plainPath struct{ imageID, path string }

// foundLink is the first symbolic link on a path.
type foundLink struct {
	link string // its own path; empty when there is none
	to   string // where the whole path leads
}

var (
	errNoPath = errors.New("no such path")
	// To look, the engine mounts what the container mounts: what it cannot mount it answers with
	// 500.
	forPath = meaning{notFound: errNoPath, invalid: engine.ErrInvalid, other: engine.ErrInvalid}
)

// checkTargets refuses mounts of a created container where links of its image lead elsewhere.
func (e *Engine) checkTargets(ctx context.Context, id, imageID string, mounts []engine.Mount) error {
	linked := "" // where the daemon's directory is reached through links
	for _, m := range mounts {
		found, err := e.linkOn(ctx, id, imageID, m.Target)
		if err != nil {
			return err
		}
		rule := fmt.Sprintf("leads through the symbolic link %.200q of the image to %.200q", found.link, found.to)
		switch {
		case found.link == "":
		case m.Directory == "":
			return &engine.TargetError{Target: m.Target, Rule: rule + "; symbolic links are not followed there"}
		case isKernels(found.to):
			return &engine.TargetError{Target: m.Target, Rule: rule + ", where nothing else can be mounted"}
		default:
			linked = m.Target
		}
	}
	// Which links lead there is not known one by one, and a volume could lie over one of them.
	own := slices.IndexFunc(mounts, func(m engine.Mount) bool { return m.Directory == "" })
	if linked != "" && own >= 0 {
		return &engine.TargetError{Target: mounts[own].Target,
			Rule: "cannot be mounted: in this image, symbolic links lead " + linked + " elsewhere"}
	}
	return nil
}

func isKernels(target string) bool {
	return target == "/" || slices.ContainsFunc(kernelDirectories, func(directory string) bool {
		return target == directory || strings.HasPrefix(target, directory+"/")
	})
}

// linkOn looks for a symbolic link on a path of the container's image, part by part. Without an
// image it does so for a container that has run.
func (e *Engine) linkOn(ctx context.Context, id, imageID, target string) (foundLink, error) {
	known := plainPath{imageID, target}
	e.plainMu.Lock()
	plain := e.plain[known]
	e.plainMu.Unlock()
	if plain && imageID != "" {
		return foundLink{}, nil
	}
	parts := strings.Split(strings.Trim(path.Clean(target), "/"), "/")
	for i := range parts {
		at := "/" + path.Join(parts[:i+1]...)
		var stat container.PathStat
		err := e.call(ctx, "look at "+at+" of the container", forPath,
			func(ctx context.Context) (err error) {
				stat, err = e.api.ContainerStatPath(ctx, id, at)
				return err
			})
		if errors.Is(err, errNoPath) {
			break // what is missing the engine makes
		}
		if err != nil {
			return foundLink{}, err
		}
		if stat.Mode&os.ModeSymlink != 0 {
			return foundLink{link: at, to: path.Join("/", stat.LinkTarget, path.Join(parts[i+1:]...))}, nil
		}
		if !stat.Mode.IsDir() {
			break
		}
	}
	e.plainMu.Lock()
	defer e.plainMu.Unlock()
	if len(e.plain) >= maxPlain {
		clear(e.plain)
	}
	e.plain[known] = true
	return foundLink{}, nil
}
