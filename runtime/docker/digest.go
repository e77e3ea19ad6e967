package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"strings"

	"sandbox.internal/runtime/engine"
)

// digests reads a directory of a container and returns a digest of each file in it, attributes
// included, by relative path.
func (e *Engine) digests(ctx context.Context, id, directory string) (map[string]string, error) {
	sums := map[string]string{}
	err := e.call(ctx, "read "+directory+" of the image", meaning{notFound: engine.ErrInvalid},
		func(ctx context.Context) error {
			archive, _, err := e.api.CopyFromContainer(ctx, id, directory)
			if err != nil {
				return err
			}
			defer func() { _ = archive.Close() }()
			for files := tar.NewReader(archive); ; {
				header, err := files.Next()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				// The first part is the name of the directory itself, which differs.
				_, relative, _ := strings.Cut(path.Clean(header.Name), "/")
				if relative == "" {
					continue
				}
				sum := sha256.New()
				target := header.Linkname
				if header.Typeflag == tar.TypeLink {
					// a path in the archive, unlike a symbolic link's
					_, target, _ = strings.Cut(path.Clean(target), "/")
				}
				_, _ = fmt.Fprintf(sum, "%c %o %d %d %d %q\n", header.Typeflag, header.Mode,
					header.Uid,
					header.Gid, header.Size, target)
				if _, err := io.Copy(sum, files); err != nil {
					return err
				}
				sums[relative] = hex.EncodeToString(sum.Sum(nil))
			}
		})
	return sums, err
}
