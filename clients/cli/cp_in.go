package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	sandbox "sandbox.internal/clients/go"
)

// upload copies a local file or directory into the sandbox.
func (c *copier) upload(ctx context.Context, from, to string) error {
	stat := os.Lstat // which follows a link with a slash at its end
	if c.follow {
		stat = os.Stat
	}
	info, err := stat(from)
	if err != nil {
		return err
	}
	there, err := c.stat(ctx, to)
	switch {
	case err == nil && there.Type == "directory":
		absolute, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		to = path.Join(to, filepath.Base(absolute))
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is not a directory", to)
	case err != nil && !errors.Is(err, sandbox.ErrNotFound):
		return err
	case err != nil && to[len(to)-1] == '/':
		return fmt.Errorf("%s: there is no such directory", to)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return c.sendLink(ctx, from, to)
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: is neither a file nor a directory", from)
		}
		return c.uploadFile(ctx, from, to, info)
	}
	root, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		target := path.Join(to, filepath.ToSlash(relative))
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			return c.makeDirectory(ctx, target, bits(info.Mode()))
		case info.Mode().IsRegular():
			return c.uploadFile(ctx, name, target, info)
		case info.Mode()&fs.ModeSymlink != 0:
			return c.sendLink(ctx, name, target)
		default:
			c.skip(name, "special file")
		}
		return nil
	})
}

// sendLink makes a link of the sandbox that is like one here.
func (c *copier) sendLink(ctx context.Context, from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return c.box.Files.Symlink(ctx, filepath.ToSlash(target), to)
}

func (c *copier) uploadFile(ctx context.Context, from, to string, info fs.FileInfo) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return c.send(ctx, file, to, info.Size(), bits(info.Mode()))
}

// send writes one file of the sandbox.
func (c *copier) send(ctx context.Context, content io.Reader, to string, size int64,
	mode uint32) error {
	sent := c.t.newTransfer(path.Base(to), size)
	defer sent.end()
	return c.box.Files.WriteFrom(ctx, to, sent.reader(content),
		&sandbox.WriteOptions{Mode: digits(mode)})
}

func (c *copier) makeDirectory(ctx context.Context, to string, mode uint32) error {
	return c.box.Files.MakeDirectory(ctx, to, &sandbox.WriteOptions{Mode: digits(mode)})
}

// unpack writes what a tar stream on the standard input holds below a directory of the sandbox. Its
// links come last: nothing of the stream is written through one.
func (c *copier) unpack(ctx context.Context, to string) error {
	archive := tar.NewReader(c.t.Stdin)
	if err := c.box.Files.MakeDirectory(ctx, to, nil); err != nil {
		return err
	}
	type link struct{ name, target string }
	var links []link
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the tar stream: %w", err)
		}
		name := path.Clean(header.Name)
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return fmt.Errorf("the tar stream: %q leads out of the directory", header.Name)
		}
		target := path.Join(to, name)
		switch header.Typeflag {
		case tar.TypeDir:
			if name != "." {
				err = c.makeDirectory(ctx, target, uint32(header.Mode))
			}
		case tar.TypeReg:
			err = c.send(ctx, archive, target, header.Size, uint32(header.Mode))
		case tar.TypeSymlink:
			links = append(links, link{target, header.Linkname})
		case tar.TypeLink:
			c.skip(header.Name, "hard link")
		default:
			c.skip(header.Name, "special file")
		}
		if err != nil {
			return err
		}
	}
	for _, l := range links {
		if err := c.box.Files.Symlink(ctx, l.target, l.name); err != nil {
			return err
		}
	}
	return nil
}
