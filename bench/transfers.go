package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"sandbox.internal/bench/pattern"
)

const transferSize = 256 << 20

// content is the file that is moved: a random MiB, over and over, so that nothing on the way can
// make it smaller.
type content struct {
	pattern []byte
	size    int64
	digest  string // as the value of Repr-Digest
}

func newContent(size int64) content {
	c := content{pattern: make([]byte, 1<<20), size: size}
	rand.NewChaCha8([32]byte{}).Read(c.pattern)
	sum := sha256.New()
	io.Copy(sum, c.reader()) // neither side can fail
	c.digest = "sha-256=:" + base64.StdEncoding.EncodeToString(sum.Sum(nil)) + ":"
	return c
}

// reader reads the content without holding all of it.
func (c content) reader() io.Reader {
	blocks := make([]io.Reader, c.size/int64(len(c.pattern)))
	for i := range blocks {
		blocks[i] = bytes.NewReader(c.pattern)
	}
	return io.MultiReader(blocks...)
}

// form is the content as a multipart body for path, and its content type and length.
func (c content) form(path string) (body io.Reader, contentType string, length int64, err error) {
	metadata, err := json.Marshal(map[string]any{"path": path, "mode": 644})
	if err != nil {
		return nil, "", 0, err
	}
	var frame bytes.Buffer
	form := multipart.NewWriter(&frame)
	err = form.WriteField("metadata", string(metadata))
	if err == nil {
		_, err = form.CreateFormFile("file", "content")
	}
	head := frame.Len()
	err = errors.Join(err, form.Close())
	parts := frame.Bytes()
	body = io.MultiReader(bytes.NewReader(parts[:head]), c.reader(), bytes.NewReader(parts[head:]))
	return body, form.FormDataContentType(), int64(len(parts)) + c.size, err
}

// upload sends the content as a form and returns the response.
func (c content) upload(ctx context.Context, client *http.Client, address string,
	headers http.Header, path string) (*http.Response, error) {
	body, contentType, length, err := c.form(path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, body)
	if err != nil {
		return nil, err
	}
	request.Header = headers.Clone()
	request.Header.Set("Content-Type", contentType)
	request.ContentLength = length
	return send(client, request, http.StatusOK)
}

// uploadTo sends the content to a daemon, which answers with the digest of what it wrote.
func (c content) uploadTo(ctx context.Context, daemon execd, path string) error {
	response, err := c.upload(ctx, daemon.client, daemon.url+"/files/upload", daemon.headers, path)
	if err != nil {
		return err
	}
	if got := response.Header.Get("Repr-Digest"); got != c.digest {
		err = fmt.Errorf("%w: the upload's digest is %q instead of %q", errLost, got, c.digest)
	}
	return errors.Join(err, drain(response))
}

// uploadToFloor sends the same bytes as a raw body.
func (c content) uploadToFloor(ctx context.Context, floor *process) error {
	return floor.put(ctx, "/upload", c.reader(), c.size)
}

// transfers has files going up and down, one at a time.
func transfers() group {
	return sharing(withServers,
		one(row{name: "upload", what: "multipart upload: written, synced, renamed",
			floor: "a raw body, written and synced by a net/http handler",
			unit:  mebiPerSec, target: ratio(0.8), gate: true},
			func(ctx context.Context, run *bench, with servers) (pair, error) {
				c, target := newContent(run.bytes(transferSize)), filepath.Join(with.dir, "uploaded")
				return run.inTurns(ctx, run.rounds(9, 3), sides{
					ours: func(ctx context.Context) (float64, error) {
						began := time.Now()
						err := c.uploadTo(ctx, with.daemon, target)
						return speed(c.size, began), err
					},
					floor: func(ctx context.Context) (float64, error) {
						began := time.Now()
						err := c.uploadToFloor(ctx, with.floor)
						return speed(c.size, began), err
					},
				})
			}),
		one(row{name: "download", what: "download of a file",
			floor: "a net/http handler with `http.ServeFile`",
			unit:  mebiPerSec, target: ratio(0.95)},
			measureDownload))
}

// servers are a daemon and a minimal server, and a directory that both can write.
type servers struct {
	daemon execd
	floor  *process
	dir    string
}

func withServers(ctx context.Context, run *bench, do func(servers) error) error {
	p, daemon, err := startExecd(ctx, run)
	if err != nil {
		return err
	}
	defer p.stop()
	floor, err := startFloor(ctx, run)
	if err != nil {
		return err
	}
	defer floor.stop()
	dir, err := run.directory("transfer")
	if err != nil {
		return err
	}
	return do(servers{daemon, floor, dir})
}

func measureDownload(ctx context.Context, run *bench, with servers) (pair, error) {
	c, source := newContent(run.bytes(transferSize)), filepath.Join(with.dir, "source")
	if err := c.save(source); err != nil {
		return pair{}, err
	}
	path := "?path=" + url.QueryEscape(source)
	buffer := make([]byte, 256<<10)
	return run.inTurns(ctx, run.rounds(15, 3), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := with.daemon.call(ctx, http.MethodGet, "/files/download"+path, "", nil)
			if err != nil {
				return 0, err
			}
			err = c.compare(response, buffer)
			return speed(c.size, began), err
		},
		floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := with.floor.get(ctx, "/download"+path)
			if err != nil {
				return 0, err
			}
			err = c.compare(response, buffer)
			return speed(c.size, began), err
		},
	})
}

// save writes the content to a file.
func (c content) save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, c.reader())
	return errors.Join(err, file.Sync(), file.Close())
}

// compare reads a download to its end and compares every byte.
func (c content) compare(response *http.Response, buffer []byte) error {
	defer response.Body.Close()
	expected := &pattern.Checker{Bytes: c.pattern, Size: c.size}
	for {
		n, err := response.Body.Read(buffer)
		if err := expected.Take(buffer[:n]); err != nil {
			return lost(err)
		}
		if errors.Is(err, io.EOF) {
			return lost(expected.End())
		}
		if err != nil {
			return err
		}
	}
}
