package cli

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	sandbox "sandbox.internal/clients/go"
)

// walk calls each with a path of the sandbox and what is below it, directories before their
// entries. Names that a sandbox made up to lead elsewhere are an error.
func (c *copier) walk(ctx context.Context, root sandbox.FileInfo,
	each func(relative string, info sandbox.FileInfo) error) error {
	queue := []sandbox.FileInfo{root}
	for len(queue) > 0 {
		info := queue[0]
		queue = queue[1:]
		relative := "."
		if info.Path != root.Path {
			below, ok := strings.CutPrefix(info.Path, strings.TrimSuffix(root.Path, "/")+"/")
			if !ok || !filepath.IsLocal(filepath.FromSlash(below)) || strings.Contains(below, "\x00") {
				return fmt.Errorf("%q is not below %s", info.Path, root.Path)
			}
			relative = below
		}
		if err := each(relative, info); err != nil {
			return err
		}
		if info.Type != "directory" {
			continue
		}
		entries, err := c.box.Files.List(ctx, info.Path, 1)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if path.Dir(entry.Path) != path.Clean(info.Path) {
				return fmt.Errorf("%q is not an entry of %s", entry.Path, info.Path)
			}
		}
		queue = slices.Insert(queue, 0, entries...)
	}
	return nil
}

// copyName is the name that a copy of from gets. It is the one that the user typed, so that the
// sandbox, whose daemon may have been replaced, cannot choose which file is overwritten. Only of a
// path that ends in no name, such as "." and "~", the sandbox says it, and then it is no hidden
// file.
func copyName(from string, root sandbox.FileInfo) (string, error) {
	name := path.Base(path.Clean(from))
	switch name {
	case ".", "..", "~", "/":
		if name = path.Base(root.Path); strings.HasPrefix(name, ".") {
			return "", fmt.Errorf("%q is %.200q: write that path instead", from, root.Path)
		}
	}
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%q cannot be the name of a file here", name)
	}
	return name, nil
}

// download copies a file or directory of the sandbox to this machine.
func (c *copier) download(ctx context.Context, from, to string) error {
	root, _, err := c.source(ctx, from)
	if err != nil {
		return err
	}
	if there, err := os.Stat(to); err == nil && there.IsDir() {
		name, err := copyName(from, root)
		if err != nil {
			return err
		}
		to = filepath.Join(to, name)
	} else if err == nil && root.Type == "directory" {
		return fmt.Errorf("%s is not a directory", to)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if root.Type == "directory" {
		return c.downloadDirectory(ctx, root, to)
	}
	switch root.Type {
	case "other":
		return fmt.Errorf("%s: is neither a file nor a directory", from)
	case "symlink":
		target, ok := linkTarget(root)
		if !ok {
			return fmt.Errorf("%s: the answer does not have the target of the link", from)
		}
		directory, err := os.OpenRoot(filepath.Dir(to))
		if err != nil {
			return err
		}
		defer func() { _ = directory.Close() }()
		return placeLink(directory, target, filepath.Base(to))
	}
	return c.downloadFile(ctx, from, root, to)
}

// downloadFile writes one file. What a link here leads to is written, and the link stays.
func (c *copier) downloadFile(ctx context.Context, from string, info sandbox.FileInfo, to string) error {
	content, err := c.box.Files.Open(ctx, from, nil)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	switch there, err := os.Stat(to); {
	case err == nil && !there.Mode().IsRegular(): // such as /dev/stdout, whose link is no path
		file, err := os.OpenFile(to, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(c.pass(content, from, file, info.Size), file.Close())
	case err == nil:
		if to, err = filepath.EvalSymlinks(to); err != nil {
			return err
		}
	}
	directory, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer func() { _ = directory.Close() }()
	return c.replace(content, from, directory, filepath.Base(to), info)
}

// replace writes a file beside the one with a name, and gives it that name when it is complete: a
// copy that fails leaves what was there.
func (c *copier) replace(content io.Reader, from string, directory *os.Root, name string, info sandbox.FileInfo) error {
	// A file that may not be written is not replaced.
	there, err := directory.OpenFile(name, os.O_WRONLY, 0)
	var before fs.FileInfo
	switch {
	case err == nil:
		if before, err = there.Stat(); err == nil && !before.Mode().IsRegular() {
			err = c.pass(content, from, there, info.Size)
			return errors.Join(err, there.Close())
		}
		if err := errors.Join(err, there.Close()); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	part := filepath.Join(filepath.Dir(name), ".sandbox-"+rand.Text())
	file, err := directory.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode(info, 0o666).Perm())
	if err != nil {
		return err
	}
	if before != nil {
		err = file.Chmod(before.Mode().Perm())
	}
	if err == nil {
		err = c.pass(content, from, file, info.Size)
	}
	if err == nil && before == nil {
		err = addBits(file, mode(info, 0o666)&^fs.ModePerm)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = directory.Rename(part, name)
	}
	if err != nil {
		err = errors.Join(err, directory.Remove(part))
	}
	return err
}

// addBits adds special bits to the mode of a file, after its content: to write to it may take them
// away.
func addBits(file *os.File, added fs.FileMode) error {
	if added == 0 {
		return nil
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return file.Chmod(info.Mode().Perm() | added)
}

// linkTarget returns the target of a symbolic link of the sandbox, and whether the sandbox has said
// it.
func linkTarget(info sandbox.FileInfo) (target string, ok bool) {
	switch {
	case info.RawLinkTarget != nil:
		return string(info.RawLinkTarget), true
	case info.LinkTarget != nil:
		return *info.LinkTarget, true
	}
	return "", false
}

// placeLink makes a symbolic link below a directory. It replaces a file or link; to neither link is
// led.
func placeLink(directory *os.Root, target, name string) error {
	part := filepath.Join(filepath.Dir(name), ".sandbox-"+rand.Text())
	if err := directory.Symlink(target, part); err != nil {
		return err
	}
	if err := directory.Rename(part, name); err != nil {
		return errors.Join(err, directory.Remove(part))
	}
	return nil
}

// maxLinks bounds what a copy remembers of the links of a sandbox, in bytes of their names and
// targets.
const maxLinks = 64 << 20

// downloadDirectory writes below a directory and nowhere else, whatever the sandbox says. Links are
// made when all else is there: nothing of the sandbox is written through one.
func (c *copier) downloadDirectory(ctx context.Context, from sandbox.FileInfo, to string) error {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	type directory struct {
		name string
		mode fs.FileMode
	}
	type link struct{ name, target string }
	var directories []directory
	var links []link
	size := 0
	err = c.walk(ctx, from, func(relative string, info sandbox.FileInfo) error {
		name := filepath.FromSlash(relative)
		switch info.Type {
		case "directory":
			directories = append(directories, directory{name, mode(info, 0o777)})
			if relative == "." {
				return nil
			}
			// Its own mode comes last: it may forbid to write.
			if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		case "file":
			content, err := c.box.Files.Open(ctx, info.Path, nil)
			if err != nil {
				return err
			}
			return errors.Join(c.replace(content, info.Path, root, name, info), content.Close())
		case "symlink":
			target, ok := linkTarget(info)
			if !ok {
				c.skip(info.Path, "symbolic link")
				return nil
			}
			if size += len(name) + len(target); size > maxLinks {
				return fmt.Errorf("%s has more symbolic links than can be copied at once", from.Path)
			}
			links = append(links, link{name, target})
		default:
			c.skip(info.Path, "special file")
		}
		return nil
	})
	for _, l := range links {
		if err == nil {
			err = placeLink(root, l.target, l.name)
		}
	}
	for _, d := range slices.Backward(directories) {
		err = errors.Join(err, root.Chmod(d.name, d.mode))
	}
	return err
}

// mode is the mode of a file, without the permissions that most leaves out. That of a link says
// nothing about what it leads to.
func mode(info sandbox.FileInfo, most fs.FileMode) fs.FileMode {
	if info.Type == "symlink" {
		return most
	}
	return localMode(permissions(info.Mode)) & (most | 0o111 | ^fs.ModePerm)
}

// receive writes the content of one file of the sandbox to a stream.
func (c *copier) receive(ctx context.Context, from string, to io.Writer, size int64) error {
	content, err := c.box.Files.Open(ctx, from, nil)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	return c.pass(content, from, to, size)
}

// pass copies the content of one file of the sandbox, and shows how far it is.
func (c *copier) pass(content io.Reader, from string, to io.Writer, size int64) error {
	got := c.t.newTransfer(path.Base(from), size)
	defer got.end()
	_, err := io.Copy(got.writer(to), content)
	return err
}

// pack writes a tar stream of a path to the standard output.
func (c *copier) pack(ctx context.Context, from string) error {
	root, followed, err := c.source(ctx, from)
	if err != nil {
		return err
	}
	if followed && root.Type == "file" {
		return fmt.Errorf("%s: name the file that the link leads to: a tar stream needs its size", from)
	}
	archive := tar.NewWriter(c.t.Stdout)
	base := "." // of what is in the root directory
	if root.Path != "/" {
		if base, err = copyName(from, root); err != nil {
			return err
		}
	}
	err = c.walk(ctx, root, func(relative string, info sandbox.FileInfo) error {
		header := &tar.Header{
			Name: path.Join(base, relative), Mode: int64(permissions(info.Mode)),
			ModTime: info.ModifiedAt, Uname: info.Owner, Gname: info.Group, Format: tar.FormatPAX,
		}
		if !utf8.ValidString(header.Name) {
			header.Format = tar.FormatGNU // whose names are bytes: those of PAX are UTF-8
		}
		switch info.Type {
		case "directory":
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
			return archive.WriteHeader(header)
		case "file":
			header.Typeflag, header.Size = tar.TypeReg, info.Size
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
			// A file that has become shorter or longer since it was listed is an error.
			return c.receive(ctx, info.Path, archive, info.Size)
		case "symlink":
			target, ok := linkTarget(info)
			if !ok {
				c.skip(info.Path, "symbolic link")
				return nil
			}
			if !utf8.ValidString(target) {
				header.Format = tar.FormatGNU
			}
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, target, 0o777
			return archive.WriteHeader(header)
		default:
			c.skip(info.Path, "special file")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return archive.Close()
}
