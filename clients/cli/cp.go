package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

// location is one end of a copy.
type location struct {
	sandbox string // empty for this machine
	path    string
}

// stream is the path of a tar stream on the standard input or output.
const stream = "-"

// parseLocation reads SANDBOX:PATH or a path of this machine: one without a colon, or with a
// separator or a drive before it.
func parseLocation(text string) location {
	name, path, remote := strings.Cut(text, ":")
	if !remote || name == "" || strings.ContainsAny(name, `/\`) || filepath.VolumeName(text) != "" ||
		(runtime.GOOS == "windows" && len(name) == 1) {
		return location{path: text}
	}
	return location{name, path}
}

func copyCommand(t *tool) *cobra.Command {
	var follow bool
	command := &cobra.Command{
		Use:   "cp [flags] SOURCE DESTINATION",
		Short: "Copy files and directories between this machine and a sandbox",
		Long: "Copy files and directories between this machine and a sandbox. One of SOURCE and\n" +
			"DESTINATION is SANDBOX:PATH, the other a local path, or - for a tar stream on\n" +
			"the standard input or output. Into a directory that exists a source keeps its\n" +
			"name; a tar stream is unpacked below the directory. Modes are kept, set-user-ID,\n" +
			"set-group-ID and sticky bits included; owners are not. Symbolic links are\n" +
			"copied as links, wherever they lead; with -L a SOURCE that is one is followed.\n" +
			"No link is followed below a directory that is copied.",
		Example: "  sandbox cp notes.txt box:/tmp/notes.txt\n" +
			"  sandbox cp -L box:/etc/os-release .\n" +
			"  sandbox cp box:/etc/apt - >apt.tar\n" +
			"  sandbox cp - box:/srv <apt.tar",
		Args: arguments(2, 2, "a SOURCE and a DESTINATION"),
		RunE: func(c *cobra.Command, args []string) error {
			from, to := parseLocation(args[0]), parseLocation(args[1])
			switch {
			case (from.sandbox == "") == (to.sandbox == ""):
				return usageErrorf("one of SOURCE and DESTINATION must be SANDBOX:PATH")
			case from.sandbox != "" && from.path == "" || to.sandbox != "" && to.path == "":
				return usageErrorf("the path of the sandbox is missing")
			case from.sandbox != "":
				return t.copyOut(c.Context(), from, to.path, follow)
			}
			return t.copyIn(c.Context(), from.path, to, follow)
		},
	}
	command.Flags().BoolVarP(&follow, "follow-link", "L", false, "follow a SOURCE that is a symbolic link")
	command.Flags().BoolVarP(&t.Printer.Quiet, "quiet", "q", false, "show no progress")
	return command
}

func (t *tool) copyIn(ctx context.Context, from string, to location, follow bool) error {
	box, err := t.find(ctx, to.sandbox)
	if err != nil {
		return err
	}
	in := &copier{t: t, box: box, follow: follow}
	if from == stream {
		return in.unpack(ctx, to.path)
	}
	return in.upload(ctx, from, to.path)
}

func (t *tool) copyOut(ctx context.Context, from location, to string, follow bool) error {
	box, err := t.find(ctx, from.sandbox)
	if err != nil {
		return err
	}
	out := &copier{t: t, box: box, follow: follow}
	if to == stream {
		if isTerminal(t.Stdout) {
			return usageErrorf("a tar stream is not for a terminal")
		}
		return out.pack(ctx, from.path)
	}
	return out.download(ctx, from.path, to)
}

// copier copies between this machine and one sandbox.
type copier struct {
	t      *tool
	box    *sandbox.Sandbox
	follow bool // a source that is a symbolic link itself
}

// source returns the facts of the path that is to be copied out of the sandbox. Of a link that is
// followed only the type is known of what it leads to.
func (c *copier) source(ctx context.Context, from string) (info sandbox.FileInfo, followed bool, err error) {
	info, err = c.stat(ctx, from)
	if err != nil || info.Type != "symlink" || !c.follow && !strings.HasSuffix(from, "/") {
		return info, false, err
	}
	_, err = c.box.Files.List(ctx, from, 1)
	var refused *sandbox.Error
	switch {
	case err == nil:
		info.Type, info.Mode = "directory", 777
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		info.Type, info.Mode = "file", 666
	default:
		return info, false, err
	}
	info.Size = 0
	return info, true, nil
}

// stat returns the facts of a path of the sandbox. Its error is ErrNotFound when there is none.
func (c *copier) stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	infos, err := c.box.Files.Info(ctx, path)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	info, ok := infos[path]
	if !ok {
		return info, fmt.Errorf("%s: the answer does not have it", path)
	}
	return info, nil
}

// skip warns of what cannot be copied.
func (c *copier) skip(path, kind string) {
	c.t.warn("%s is left out: it is a %s", path, kind)
}

// modeBits are those of a mode that a copy keeps: permissions, and those for set-user-ID,
// set-group-ID and the sticky bit.
const modeBits = 0o7777

// digits writes such bits as the client takes them: 0644 is "644".
func digits(mode uint32) string { return strconv.FormatUint(uint64(mode&modeBits), 8) }

// permissions reads the digits as the contract has them.
func permissions(digits int) uint32 {
	return uint32(digits/1000%10<<9|digits/100%10<<6|digits/10%10<<3|digits%10) & modeBits
}

// special are the bits of modeBits that package fs has elsewhere.
var special = []struct {
	unix uint32
	mode fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

// bits are the modeBits of a local file.
func bits(mode fs.FileMode) uint32 {
	unix := uint32(mode.Perm())
	for _, s := range special {
		if mode&s.mode != 0 {
			unix |= s.unix
		}
	}
	return unix
}

// localMode is what bits returns.
func localMode(unix uint32) fs.FileMode {
	mode := fs.FileMode(unix).Perm()
	for _, s := range special {
		if unix&s.unix != 0 {
			mode |= s.mode
		}
	}
	return mode
}
