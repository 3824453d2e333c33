// Reads messages of the stream "outbox" by an ordered consumer, and prints them as JSON lines.
//
//	nats PORT COUNT
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const wait = time.Minute

func main() {
	count, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = read(os.Args[1], count)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func read(port string, count int) error {
	client, err := nats.Connect("nats://127.0.0.1:" + port)
	if err != nil {
		return err
	}
	defer client.Close()
	stream, err := jetstream.New(client)
	if err != nil {
		return err
	}
	consumer, err := stream.OrderedConsumer(context.Background(), "outbox", jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	for range count {
		message, err := consumer.Next(jetstream.FetchMaxWait(wait))
		if err != nil {
			return err
		}
		if err := show(message); err != nil {
			return err
		}
	}
	return nil
}

func show(message jetstream.Msg) error {
	headers := map[string]string{}
	for name, values := range message.Headers() {
		headers[name] = values[0]
	}
	key, topic := headers["walpost.key"], headers["walpost.topic"]
	if encoded, ok := headers["walpost.key.base64"]; ok {
		bytes, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return err
		}
		key = string(bytes)
	}
	if topic == "" {
		topic = message.Subject()
	}
	line, err := json.Marshal(map[string]any{
		"topic": topic, "key": key, "id": headers["id"], "type": headers["event_type"], "headers": headers,
	})
	if err == nil {
		fmt.Println(string(line))
	}
	return err
}
