package mcp

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

// maxFound is how many files one search shows.
const maxFound = 200

// addFiles adds the tools for files.
func (t *tools) addFiles(server *mcp.Server) {
	add(server, &mcp.Tool{Name: "read_file",
		Description: "Read a text file, a part of one, or an image.",
		Annotations: readOnly("Read a file")}, t.readFile)
	add(server, &mcp.Tool{Name: "write_file",
		Description: "Write a file, replacing what is there. Makes parent directories.",
		Annotations: changes("Write a file", true, true, false)}, t.writeFile)
	addStructured(server, &mcp.Tool{Name: "search_files",
		Description: "Find files below a directory by a glob.",
		Annotations: readOnly("Search files")}, t.searchFiles)
}

type readInput struct {
	boxInput
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty" jsonschema:"first byte"`
}

// imageTypes are those that agents can look at.
var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

func (t *tools) readFile(ctx context.Context, _ call,
	in readInput) (content, error) {
	if in.Offset < 0 {
		return nil, errors.New("offset must be 0 or more")
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	file, err := box.Files.Open(ctx, in.Path, &sandbox.ReadOptions{Offset: in.Offset})
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxText+1))
	if err != nil {
		return nil, err
	}
	if kind := http.DetectContentType(data); in.Offset == 0 && slices.Contains(imageTypes, kind) {
		held := reservationOf(ctx)
		if err := held.acquire(ctx, maxImageBytes); err != nil {
			return nil, err
		}
		rest, err := io.ReadAll(io.LimitReader(file, maxImageBytes+1-int64(len(data))))
		if err != nil {
			return nil, err
		}
		if len(data)+len(rest) > maxImageBytes {
			return nil, fmt.Errorf("the image has more than %d bytes: make it smaller", maxImageBytes)
		}
		held.release(maxImageBytes - int64(len(data)+len(rest)))
		return content{&mcp.ImageContent{Data: append(data, rest...), MIMEType: kind}}, nil
	}
	more := len(data) > maxText
	data = whole(data[:min(len(data), maxText)], more)
	if !utf8.Valid(data) {
		return nil, errors.New("the file is not text in UTF-8: look at it with run_command")
	}
	if more {
		return text("%s\n[cut; offset %d reads on]", data, in.Offset+int64(len(data))), nil
	}
	return text("%s", data), nil
}

// whole takes an unfinished character off the end.
func whole(data []byte, cut bool) []byte {
	for i := 1; cut && i <= utf8.UTFMax && i <= len(data); i++ {
		if start := len(data) - i; utf8.RuneStart(data[start]) {
			if !utf8.FullRune(data[start:]) {
				return data[:start]
			}
			break
		}
	}
	return data
}

type writeInput struct {
	boxInput
	Path    string `json:"path"`
	Content string `json:"content"`
	Base64  bool   `json:"base64,omitempty" jsonschema:"content is base64"`
	Mode    int    `json:"mode,omitempty" jsonschema:"octal digits, e.g. 755"`
}

func (t *tools) writeFile(ctx context.Context, _ call,
	in writeInput) (content, error) {
	data := []byte(in.Content)
	if in.Base64 {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, fmt.Errorf("content is not base64: %w", err)
		}
	}
	options := &sandbox.WriteOptions{}
	if in.Mode != 0 {
		options.Mode = strconv.Itoa(in.Mode)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := box.Files.Write(ctx, in.Path, data, options); err != nil {
		return nil, err
	}
	return text("wrote %d bytes", len(data)), nil
}

type searchInput struct {
	boxInput
	Path    string `json:"path" jsonschema:"directory"`
	Pattern string `json:"pattern" jsonschema:"e.g. *.py, or src/**/*.go against the relative path"`
}

type searchOutput struct {
	Files []foundFile `json:"files"`
	More  int         `json:"more,omitempty"`
}

type foundFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

func (t *tools) searchFiles(ctx context.Context, _ call,
	in searchInput) (content, searchOutput, error) {
	out := searchOutput{Files: []foundFile{}}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, out, err
	}
	found, err := box.Files.Search(ctx, in.Path, in.Pattern)
	if err != nil {
		return nil, out, err
	}
	if len(found) == 0 {
		return text("Nothing matches."), out, nil
	}
	var shown lines
	for i, file := range found {
		if i == maxFound || !shown.add("%s %d\n", file.Path, file.Size) {
			out.More = len(found) - i
			fmt.Fprintf(&shown, "[%d more; use a narrower path or pattern]\n", out.More)
			break
		}
		out.Files = append(out.Files, foundFile{file.Path, file.Size})
	}
	return text("%s", shown.String()), out, nil
}
