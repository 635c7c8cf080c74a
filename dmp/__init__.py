"""DMP and its AMQP 0-9-1 principal: exchanges, queues, and bulk messages over leased connections."""
